// A store that processes carry themselves, when those who lead it die. What holds for every store is in store.cpp.
#include <muster/comm/tcp/embedded_store.hpp>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/tcp/store.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"
#include "comm/net/socket.hpp"
#include "dying.hpp"
#include "places.hpp"
#include "worker.hpp"

using muster::deadline_after;
using muster::embedded_store;
using muster::embedded_store_options;
using muster::seconds;
using places::place;
using places::soon;
using places::worker;

namespace {

std::string free_place() { return "127.0.0.1:" + std::to_string(muster::store_server("127.0.0.1:0", "").port()); }

void add(embedded_store& store, const std::string& key, int count) {
  for (int left = count; left > 0;) {
    const auto there = store.get(key, soon());
    const int number = there ? std::stoi(there.value) : 0;
    if (store.compare_and_swap(key, there.version, std::to_string(number + 1), soon()).swapped) --left;
  }
}

/// Processes that carry the store at this place, each older than the next: the first leads.
std::vector<worker> carriers(place& at, int count) {
  std::vector<worker> crew;
  for (int i = 0; i < count; ++i) {
    const std::string mark = "carrier " + std::to_string(i);
    crew.emplace_back(at, std::vector<std::string>{"hold", mark, "3000"});
    if (i == 0) continue;
    auto store = at.open();
    REQUIRE(store.watch(mark, 0, soon()));
  }
  return crew;
}

}  // namespace

TEST_CASE("the processes that lead an embedded store are killed one by one, and every addition is made once") {
  const auto seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  CAPTURE(seed);
  muster::random_stream random(seed);
  for (int round = 0; round < 4; ++round) {
    place at("nothing that stands already");
    at.words = {"embedded", free_place(), "a secret"};
    auto crew = carriers(at, 4);
    constexpr int each = 150;
    embedded_store mine(at.words[1], {at.words[2]}, soon());
    {
      std::vector<std::jthread> adding;
      for (int i = 0; i < 3; ++i) adding.emplace_back([&] { add(mine, "sum", each); });
      for (auto& leader : crew) {
        std::this_thread::sleep_for(std::chrono::microseconds(random.below(20000)));
        leader.send(SIGKILL);
      }
    }
    CHECK(mine.get("sum", soon()).value == std::to_string(3 * each));
    CHECK_FALSE(mine.get("carrier 2", soon()));  // what hung on them is gone with them
  }
}

TEST_CASE("another process of the host holds the place of an embedded store when the one that did is gone") {
  place at("nothing that stands already");
  at.words = {"embedded", free_place(), "a secret"};
  auto crew = carriers(at, 2);
  crew.front().send(SIGKILL);
  auto store = at.open();  // finds the second
  CHECK(store.get("carrier 1", soon()));
  CHECK(store.compare_and_swap("key", 0, "value", soon()).swapped);
  crew.clear();
  CHECK(at.open().get("key", soon()).value == "value");
}

TEST_CASE("an embedded store waits for those that begin it, and says whom it waited for") {
  const auto where = free_place();
  embedded_store_options options;
  options.of = 3;
  CHECK_THROWS_WITH(embedded_store(where, options, deadline_after(seconds(0.3))),
                    contains("more than half of the 3 processes"));
  std::vector<std::jthread> openers;
  std::atomic<int> opened = 0;
  for (int i = 0; i < 3; ++i) {
    openers.emplace_back([&] {
      embedded_store store(where, options, soon());
      add(store, "here", 1);
      for (auto there = store.get("here", soon()); there.value != "3";)
        there = store.watch("here", there.version, soon()).value();
      ++opened;
    });
  }
  openers.clear();
  CHECK(opened == 3);
}

TEST_CASE("who does not know the token of an embedded store is told, and strangers hold up nobody") {
  const auto where = free_place();
  embedded_store store(where, {"the token"}, soon());
  CHECK_THROWS_AS(embedded_store(where, {"another"}, soon()), muster::configuration_error);
  CHECK_THROWS_WITH(embedded_store(where, {"another"}, soon()), contains("does not know this job's token"));
  CHECK_THROWS_AS(embedded_store("no-such-host.invalid:29500", {}, soon()), muster::configuration_error);
  CHECK_THROWS_AS(embedded_store("29500", {}, soon()), muster::configuration_error);
  std::vector<muster::detail::tcp_socket> strangers;
  muster::random_stream random(7);
  for (int i = 0; i < 600; ++i) {  // more than are let wait at a time
    strangers.push_back(muster::detail::tcp_socket::connect(muster::detail::address::parse(where), soon()));
    std::string garbage(random.below(200), static_cast<char>(i));
    try {
      strangers.back().write_exactly(std::as_bytes(std::span(garbage)), soon());
    } catch (const muster::detail::socket_error&) {  // it has been dropped already
    }
  }
  CHECK(store.compare_and_swap("key", 0, "value", soon()).swapped);
  embedded_store other(where, {"the token"}, soon());
  CHECK(other.get("key", soon()).value == "value");
}

TEST_CASE("who was talking to a process that died is not of another job, and begins the store itself") {
  const dying_server first;
  embedded_store store(first.where(), {"the token"}, soon());
  CHECK(store.compare_and_swap("key", 0, "value", soon()).swapped);
}

TEST_CASE("who joins an embedded store gets all of it, however large, and keeps what it gets") {
  const auto where = free_place();
  std::optional<embedded_store> first(std::in_place, where, embedded_store_options{}, soon());
  const std::string value(muster::store_value_limit, 'v');
  for (int i = 0; i < 24; ++i) REQUIRE(first->compare_and_swap("key " + std::to_string(i), 0, value, soon()).swapped);
  embedded_store second(where, {}, soon());
  first.reset();
  for (int i = 0; i < 24; ++i) CHECK(second.get("key " + std::to_string(i), soon()).value == value);
}
