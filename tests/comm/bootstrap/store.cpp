// The properties of a store of any kind.
#include <muster/comm/bootstrap/store.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"
#include "places.hpp"
#include "worker.hpp"

using muster::store_entry;
using places::place;
using places::soon;
using places::worker;

namespace {

/// Returns a deadline that a call is expected to reach.
auto shortly() { return muster::deadline_after(muster::seconds(0.05)); }

/// Runs a case with every kind of store.
template <class Body>
void over_all(Body&& body) {
  for (const auto& kind : places::kinds()) {
    CAPTURE(kind);
    const place at(kind);
    body(at);
  }
}

/// Adds 1 to the number under the key.
void add(muster::any_store& store, const std::string& key) {
  for (;;) {
    const auto entry = store.get(key, soon());
    const int number = entry ? std::stoi(entry.value) : 0;
    if (store.compare_and_swap(key, entry.version, std::to_string(number + 1), soon()).swapped) return;
  }
}

/// Waits until a key exists, and returns its entry.
store_entry await(muster::any_store& store, const std::string& key) {
  const auto found = store.watch(key, 0, soon());
  REQUIRE(found);
  return *found;
}

}  // namespace

TEST_CASE("a key is written, changed and removed under the version that was seen, and no other") {
  over_all([](const place& at) {
    const auto store_ = at.open();
    auto& store = *store_;
    const auto other_ = at.open();
    auto& other = *other_;
    CHECK(store.get("key", soon()) == store_entry{});
    const auto first = store.compare_and_swap("key", 0, "one", soon());
    REQUIRE(first.swapped);
    CHECK(first.now.version > 0);
    CHECK(other.get("key", soon()) == store_entry{first.now.version, "one"});

    const auto refused = other.compare_and_swap("key", 0, "two", soon());
    CHECK_FALSE(refused.swapped);
    CHECK(refused.now == store_entry{first.now.version, "one"});
    CHECK_FALSE(other.compare_and_swap("key", first.now.version + 1, "two", soon()).swapped);

    const auto second = other.compare_and_swap("key", first.now.version, "two", soon());
    REQUIRE(second.swapped);
    CHECK(second.now.version > first.now.version);
    CHECK(store.get("key", soon()) == store_entry{second.now.version, "two"});

    CHECK_FALSE(store.compare_and_swap("key", first.now.version, std::nullopt, soon()).swapped);
    const auto removed = store.compare_and_swap("key", second.now.version, std::nullopt, soon());
    CHECK(removed.swapped);
    CHECK(removed.now == store_entry{});
    CHECK(other.get("key", soon()) == store_entry{});
    CHECK(store.compare_and_swap("key", 0, std::nullopt, soon()).swapped);  // removing a missing key succeeds

    const auto again = store.compare_and_swap("key", 0, "", soon());
    REQUIRE(again.swapped);
    CHECK(again.now.version > second.now.version);  // a version is never used twice
    CHECK(other.get("key", soon()) == store_entry{again.now.version, ""});
  });
}

TEST_CASE("keys and values are any bytes up to the limits, and different keys stay apart") {
  over_all([](const place& at) {
    const auto store_ = at.open();
    auto& store = *store_;
    std::string bytes;
    for (int c = 0; c < 256; ++c) bytes += static_cast<char>(c);
    std::vector<std::string> keys{"a",  "A", "a/b", "a/", "/", "..", ".", "%61", "a%2fb", "a\nb", std::string(1, '\0'),
                                  bytes};
    // Long keys that differ at the end, or in a character that is neither letter nor digit.
    for (const char c : {'x', 'y'}) keys.push_back(std::string(muster::store_key_limit - 1, 'k') + c);
    for (const char c : {'/', '\n'}) keys.push_back(std::string(muster::store_key_limit, c));
    for (const auto& key : keys) {
      REQUIRE(store.compare_and_swap(key, 0, "value of " + key + bytes, soon()).swapped);
    }
    for (const auto& key : keys) CHECK(store.get(key, soon()).value == "value of " + key + bytes);

    const std::string largest(muster::store_value_limit, 'v');
    REQUIRE(store.compare_and_swap("large", 0, largest, soon()).swapped);
    CHECK(store.get("large", soon()).value == largest);

    const std::string too_long(muster::store_key_limit + 1, 'k');
    for (const auto& key : {std::string(), too_long}) {
      CHECK_THROWS_AS(store.get(key, soon()), muster::configuration_error);
      CHECK_THROWS_AS(store.watch(key, 0, soon()), muster::configuration_error);
      CHECK_THROWS_AS(store.compare_and_swap(key, 0, "value", soon()), muster::configuration_error);
    }
    CHECK_THROWS_AS(store.compare_and_swap("key", 0, largest + "v", soon()), muster::configuration_error);
    CHECK(store.get("a", soon()));  // the errors have no effect on the store
  });
}

TEST_CASE("keys of a job are limited by the length that its name leaves, and the error says so") {
  const std::string job(150, 'j');
  const auto store = muster::detail::of_job(std::make_unique<muster::memory_store>(), job);
  const std::size_t longest = muster::store_key_limit - muster::detail::store_name(job).size() - 1;
  REQUIRE(store->compare_and_swap(std::string(longest, 'k'), 0, "value", soon()).swapped);
  CHECK_THROWS_WITH(
      store->get(std::string(longest + 1, 'k'), soon()),
      Catch::Contains("a key of " + std::to_string(longest + 1) + " bytes (a key has 1 to " + std::to_string(longest)));
}

TEST_CASE("no two jobs get one name, and the name of a name is itself") {
  const std::string jobs[] = {"a",
                              "a_b",
                              "a/b",
                              "a:b",
                              "a b",
                              "tcp://h:1",
                              "tcp___h_1",
                              std::string(200, 'x'),
                              std::string(201, 'x'),
                              std::string(201, 'x') + "y",
                              std::string(200, 'x') + "/",
                              "\xc3\xa4",
                              "\xc3\xb6"};
  std::set<std::string> names;
  const auto prefix = muster::detail::store_name("");
  for (const auto& job : jobs) {
    const auto name = muster::detail::store_name(job);
    INFO(job << " is " << name);
    CHECK(names.insert(name).second);
    CHECK(name.size() <= prefix.size() + 200);
    CHECK(muster::detail::store_name(name.substr(prefix.size())) == name);
  }
  CHECK(muster::detail::store_name("a-b.c_1") == prefix + "a-b.c_1");
}

TEST_CASE("no addition by threads, objects or processes is lost or made twice", "[slow]") {
  over_all([](const place& at) {
    constexpr int threads = 4;
    constexpr int each = 100;
    const auto shared_ = at.open();
    auto& shared = *shared_;
    std::vector<worker> processes;
    for (int i = 0; i < 2; ++i)
      processes.emplace_back(at, std::vector<std::string>{"add", "sum", std::to_string(each)});
    {
      std::vector<std::jthread> adding;
      for (int i = 0; i < threads; ++i) {
        adding.emplace_back([&, i] {
          const auto own = i % 2 == 1 ? at.open() : nullptr;
          for (int n = 0; n < each; ++n) add(own ? *own : shared, "sum");
        });
      }
    }
    for (auto& process : processes) CHECK(process.wait() == 0);
    CHECK(shared.get("sum", soon()).value == std::to_string((threads + 2) * each));
  });
}

TEST_CASE("versions grow with every write, over all keys, as every reader sees them") {
  over_all([](const place& at) {
    std::atomic<bool> done = false;
    std::atomic<int> out_of_order = 0;
    {
      std::vector<std::jthread> reading;
      for (int i = 0; i < 2; ++i) {
        reading.emplace_back([&] {
          const auto store_ = at.open();
          auto& store = *store_;
          std::uint64_t seen[2] = {};
          while (!done) {
            // A value that was written later and is read later must not be older.
            const auto late = store.get("first", soon());
            const auto later = store.get("second", soon());
            if (late.version < seen[0] || later.version < seen[1]) ++out_of_order;
            if (late && later && std::stoi(later.value) < std::stoi(late.value)) ++out_of_order;
            seen[0] = late.version;
            seen[1] = later.version;
          }
        });
      }
      const auto store_ = at.open();
      auto& store = *store_;
      store_entry first;
      store_entry second;
      for (int n = 0; n < 200; ++n) {  // the second is never behind the first
        const auto ahead = store.compare_and_swap("second", second.version, std::to_string(n), soon());
        const auto behind = store.compare_and_swap("first", first.version, std::to_string(n), soon());
        CHECK((ahead.swapped && behind.swapped && behind.now.version > ahead.now.version));
        second = ahead.now;
        first = behind.now;
      }
      done = true;
    }
    CHECK(out_of_order == 0);
  });
}

TEST_CASE("a watch returns what differs at once, waits for it, and ends at its deadline") {
  over_all([](const place& at) {
    const auto store_ = at.open();
    auto& store = *store_;
    const auto other_ = at.open();
    auto& other = *other_;
    CHECK_FALSE(store.watch("key", 0, shortly()));
    const auto first = other.compare_and_swap("key", 0, "one", soon()).now;
    CHECK(store.watch("key", 0, soon()) == store_entry{first.version, "one"});
    CHECK(store.watch("key", first.version + 7, soon()) == store_entry{first.version, "one"});
    CHECK_FALSE(store.watch("key", first.version, shortly()));

    std::uint64_t known = first.version;
    for (int i = 0; i < 20; ++i) {
      std::jthread writer([&, i] {
        if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
        const auto entry = other.get("key", soon());
        const auto value = "value " + std::to_string(i);
        if (i % 4 == 3) {
          other.compare_and_swap("key", entry.version, std::nullopt, soon());
        } else {
          other.compare_and_swap("key", entry.version, value, soon());
        }
        other.compare_and_swap("another key " + std::to_string(i), 0, value, soon());
      });
      const auto seen = store.watch("key", known, soon());
      REQUIRE(seen);
      CHECK(seen->value == (i % 4 == 3 ? "" : "value " + std::to_string(i)));
      known = seen->version;
    }
  });
}

TEST_CASE("many watch at the same time, from threads and from one object, and all are woken") {
  over_all([](const place& at) {
    const auto shared_ = at.open();
    auto& shared = *shared_;
    std::atomic<int> woken = 0;
    {
      std::vector<std::jthread> watching;
      for (int i = 0; i < 12; ++i) {
        watching.emplace_back([&, i] {
          const auto own = i % 4 == 3 ? at.open() : nullptr;
          const auto seen = (own ? *own : shared).watch("key " + std::to_string(i % 2), 0, soon());
          if (seen && seen->value == "now") ++woken;
        });
      }
      for (const char* key : {"key 0", "key 1"}) shared.compare_and_swap(key, 0, "now", soon());
    }
    CHECK(woken == 12);
  });
}

TEST_CASE("a key of a client vanishes as that closes the store, not before, and watchers are woken") {
  over_all([](const place& at) {
    auto first = at.open();
    const auto other_ = at.open();
    auto& other = *other_;
    const auto of_client = muster::store_life::of_client;
    const auto member_entry = first->compare_and_swap("member", 0, "here", soon(), of_client).now;
    const auto kept = first->compare_and_swap("kept", 0, "here", soon(), of_client).now;
    REQUIRE(first->compare_and_swap("kept", kept.version, "of the store now", soon()).swapped);
    const auto taken = first->compare_and_swap("taken", 0, "here", soon(), of_client).now;
    REQUIRE(other.compare_and_swap("taken", taken.version, "of another client now", soon(), of_client).swapped);
    const auto foreign = other.compare_and_swap("foreign", 0, "of another client", soon(), of_client).now;
    CHECK_FALSE(other.watch("member", member_entry.version, muster::deadline_after(muster::seconds(0.5))));
    {
      std::jthread ending([&] { first.reset(); });
      CHECK(other.watch("member", member_entry.version, soon()) == store_entry{});
    }
    CHECK(other.get("kept", soon()).value == "of the store now");
    CHECK(other.get("taken", soon()).value == "of another client now");
    CHECK(other.get("foreign", soon()) == store_entry{foreign.version, "of another client"});
    const auto again = other.compare_and_swap("member", 0, "the next", soon());
    REQUIRE(again.swapped);
    CHECK(again.now.version > foreign.version);
  });
}

TEST_CASE("a key of a client vanishes when that is killed: at once, where the system tells") {
  over_all([](const place& at) {
    const auto store_ = at.open();
    auto& store = *store_;
    worker holder(at, {"hold", "member"});
    const auto entry = await(store, "member");
    CHECK_FALSE(store.watch("member", entry.version, shortly()));
    holder.send(SIGKILL);
    CHECK(store.watch("member", entry.version, soon()) == store_entry{});
  });
}

TEST_CASE("the store stays whole whichever process is killed at any moment") {
  const auto seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  CAPTURE(seed);
  muster::random_stream random(seed);
  over_all([&](const place& at) {
    const auto store_ = at.open();
    auto& store = *store_;
    for (int round = 0; round < 15; ++round) {
      std::vector<worker> processes;
      for (int i = 0; i < 2; ++i) processes.emplace_back(at, std::vector<std::string>{"churn", "key"});
      (void)store.watch("key", store.get("key", soon()).version, soon());  // both processes write
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(20000)));
      processes.clear();
      const auto entry = store.get("key", soon());
      if (entry) CHECK(entry.value == std::string(entry.value.size(), entry.value.empty() ? 'x' : entry.value[0]));
      add(store, "rounds");
    }
    CHECK(store.get("rounds", soon()).value == "15");
  });
}
