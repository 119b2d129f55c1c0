// A process at a store, for test_store: KIND WHERE... -- COMMAND...
//   add KEY N          adds 1 to the number under the key, N times
//   hold KEY           leaves "held" under the key, which goes with it, and waits as long as the store is there
//   await KEY          waits until the key is there
//   gone KEY           waits until it is there no more
//   churn KEY          writes to the key as fast as it goes, for ever; every other value goes with it
//   serve              serves the store that "tcp WHERE TOKEN" names, and waits
//   meet PREFIX R SIZE exchanges "word R" as rank R, and checks what it gets
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <muster/comm/bootstrap/exchange.hpp>

#include "places.hpp"

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto split = std::find(words.begin(), words.end(), "--");
  const std::vector<std::string> what(split + 1, words.end());
  if (what.at(0) == "serve") {
    const muster::store_server server(words.at(1), words.at(2));
    for (;;) ::pause();
  }
  const auto opened = places::open({words.begin(), split});
  auto& store = *opened;
  const auto until = places::soon();
  if (what.at(0) == "add") {
    for (int left = std::stoi(what.at(2)); left > 0;) {
      const auto there = store.get(what.at(1), until);
      const int number = there ? std::stoi(there.value) : 0;
      if (store.compare_and_swap(what.at(1), there.version, std::to_string(number + 1), until).swapped) --left;
    }
  } else if (what.at(0) == "hold") {
    store.compare_and_swap(what.at(1), 0, "held", until, muster::store_life::of_client);
    for (;;) (void)store.watch("nothing", 0, muster::deadline_after(muster::seconds(1e9)));
  } else if (what.at(0) == "await") {
    if (!store.watch(what.at(1), 0, until)) return 8;
  } else if (what.at(0) == "gone") {
    for (auto there = store.get(what.at(1), until); there;) {
      const auto next = store.watch(what.at(1), there.version, until);
      if (!next) return 8;
      there = *next;
    }
  } else if (what.at(0) == "churn") {
    for (std::uint64_t i = 0;; ++i) {
      const auto there = store.get(what.at(1), until);
      const std::string value(i % 5000, static_cast<char>('a' + i % 26));
      store.compare_and_swap(what.at(1), there.version, value, until,
                             i % 2 == 0 ? muster::store_life::of_client : muster::store_life::of_store);
    }
  } else if (what.at(0) == "meet") {
    const int rank = std::stoi(what.at(2));
    const int size = std::stoi(what.at(3));
    const auto said = muster::exchange(store, what.at(1), rank, size, "word " + std::to_string(rank), until);
    for (int r = 0; r < size; ++r) {
      if (said.at(static_cast<std::size_t>(r)) != "word " + std::to_string(r)) return 9;
    }
  }
  return 0;
} catch (const std::exception& failed) {
  std::fprintf(stderr, "worker: %s\n", failed.what());
  return 1;
}
