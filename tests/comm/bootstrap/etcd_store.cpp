// What is an etcd's own: it comes and goes, and keeps what it has without clients.
#include <muster/comm/bootstrap/etcd_store.hpp>

#include <thread>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "places.hpp"

using places::place;
using places::soon;

TEST_CASE("what a former job left in an etcd is cleared by the first that opens it, and by the last") {
  if (!places::has_etcd()) SUCCEED("SKIPPED: there is no etcd");
  if (!places::has_etcd()) return;
  const place at("etcd");
  const place other("etcd");
  const auto kept_ = other.open();
  auto& kept = *kept_;
  REQUIRE(kept.compare_and_swap("key", 0, "of another job", soon()).swapped);
  {
    const auto store_ = at.open();
    auto& store = *store_;
    REQUIRE(store.compare_and_swap("key", 0, "left", soon()).swapped);
    const auto second_ = at.open();
    auto& second = *second_;
    CHECK(second.get("key", soon()).value == "left");
  }
  const auto next_ = at.open();
  auto& next = *next_;
  CHECK(next.get("key", soon()) == muster::store_entry{});
  CHECK(kept.get("key", soon()).value == "of another job");
}

TEST_CASE("an etcd that is stopped or killed fails calls at their deadlines, and nothing else") {
  if (!places::has_etcd()) SUCCEED("SKIPPED: there is no etcd");
  if (!places::has_etcd()) return;
  places::etcd_process server;
  const auto shortly = [] { return muster::deadline_after(muster::seconds(0.2)); };
  muster::etcd_store store(server.address(), "http", "comes-and-goes", soon());
  const auto first = store.compare_and_swap("key", 0, "one", soon()).now;
  server.stop();
  CHECK_THROWS_AS(store.get("key", shortly()), muster::timeout_error);
  CHECK_THROWS_AS(store.compare_and_swap("key", first.version, "two", shortly()), muster::timeout_error);
  CHECK_FALSE(store.watch("key", first.version, shortly()));
  server.send(SIGCONT);
  auto seen = store.get("key", soon());  // the swap may have happened, or happen yet
  CHECK((seen.value == "one" || seen.value == "two"));
  std::jthread writer([&, now = seen]() mutable {
    for (bool swapped = false; !swapped;) {
      const auto outcome = store.compare_and_swap("key", now.version, "three", soon());
      swapped = outcome.swapped;
      now = outcome.now;
    }
  });
  while (seen.value != "three") seen = store.watch("key", seen.version, soon()).value();
  writer.join();
  server.end();
  CHECK_THROWS_AS(store.get("key", shortly()), muster::timeout_error);
  CHECK_THROWS_AS(store.compare_and_swap("key", first.version, "four", shortly()), muster::timeout_error);
}

TEST_CASE("an etcd that cannot be reached or named is an error") {
  const auto shortly = muster::deadline_after(muster::seconds(0.2));
  CHECK_THROWS_AS(muster::etcd_store("127.0.0.1:1", "http", "x", shortly), muster::timeout_error);
  CHECK_THROWS_AS(muster::etcd_store("", "http", "x", shortly), muster::configuration_error);
  CHECK_THROWS_AS(muster::etcd_store("a:1,,b:2", "http", "x", shortly), muster::configuration_error);
}
