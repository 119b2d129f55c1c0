// A process at a store, for test_store: KIND WHERE... -- COMMAND...
//   add KEY N          adds 1 to the number under the key, N times
//   hold KEY           writes "held" under the key for the life of this client, and waits while the store exists
//   await KEY          waits until the key exists
//   gone KEY           waits until the key no longer exists
//   churn KEY          writes to the key continuously; the life of every other value is this client's
//   serve              serves the store that "tcp WHERE TOKEN" names, and waits
//   meet PREFIX R SIZE exchanges "word R" as rank R, and checks the result
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
  const std::vector<std::string> command(split + 1, words.end());
  if (command.at(0) == "serve") {
    const muster::store_server server(words.at(1), words.at(2));
    for (;;) ::pause();
  }
  const auto opened = places::open({words.begin(), split});
  auto& store = *opened;
  const auto until = places::soon();
  if (command.at(0) == "add") {
    for (int remaining = std::stoi(command.at(2)); remaining > 0;) {
      const auto entry = store.get(command.at(1), until);
      const int number = entry ? std::stoi(entry.value) : 0;
      if (store.compare_and_swap(command.at(1), entry.version, std::to_string(number + 1), until).swapped) --remaining;
    }
  } else if (command.at(0) == "hold") {
    store.compare_and_swap(command.at(1), 0, "held", until, muster::store_life::of_client);
    for (;;) (void)store.watch("nothing", 0, muster::deadline_after(muster::seconds(1e9)));
  } else if (command.at(0) == "await") {
    if (!store.watch(command.at(1), 0, until)) return 8;
  } else if (command.at(0) == "gone") {
    for (auto entry = store.get(command.at(1), until); entry;) {
      const auto next = store.watch(command.at(1), entry.version, until);
      if (!next) return 8;
      entry = *next;
    }
  } else if (command.at(0) == "churn") {
    for (std::uint64_t i = 0;; ++i) {
      const auto entry = store.get(command.at(1), until);
      const std::string value(i % 5000, static_cast<char>('a' + i % 26));
      store.compare_and_swap(command.at(1), entry.version, value, until,
                             i % 2 == 0 ? muster::store_life::of_client : muster::store_life::of_store);
    }
  } else if (command.at(0) == "meet") {
    const int rank = std::stoi(command.at(2));
    const int size = std::stoi(command.at(3));
    const auto texts = muster::exchange(store, command.at(1), rank, size, "word " + std::to_string(rank), until);
    for (int r = 0; r < size; ++r) {
      if (texts.at(static_cast<std::size_t>(r)) != "word " + std::to_string(r)) return 9;
    }
  }
  return 0;
} catch (const std::exception& failed) {
  std::fprintf(stderr, "worker: %s\n", failed.what());
  return 1;
}
