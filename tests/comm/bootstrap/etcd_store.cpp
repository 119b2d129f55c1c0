// Properties of an etcd alone: it may fail and return, and it keeps its contents without clients.
#include <muster/comm/bootstrap/etcd_store.hpp>

#include <poll.h>

#include <array>
#include <string>
#include <thread>

#include <muster/core/error.hpp>

#include <muster/comm/net/socket.hpp>
#include <muster/core/base64.hpp>
#include "catch.hpp"
#include "comm/bootstrap/stores/etcd/etcd_client.hpp"
#include "places.hpp"

using places::place;
using places::soon;

namespace {

/// Replies to every request with one body, as a proxy does whose etcd is unavailable.
class proxy {
 public:
  explicit proxy(const std::string& body)
      : listener_(muster::detail::tcp_socket::listen(muster::detail::address::parse("127.0.0.1:0"))),
        where_(listener_.local().to_string()),
        answer_("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: ") {
    answer_ += std::to_string(body.size());
    answer_ += "\r\n\r\n";
    answer_ += body;
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (!muster::detail::wait_for(listener_.file(), POLLIN, muster::deadline_after(muster::seconds(0.02))))
          continue;
        try {
          serve(listener_.accept());
        } catch (const muster::detail::socket_error&) {  // the client has closed
        }
      }
    });
  }
  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  void serve(const muster::detail::tcp_socket& client) {
    if (!client) return;
    std::array<std::byte, 4096> request;
    client.await(POLLIN, soon());
    (void)client.read_some(request);
    const iovec all{answer_.data(), answer_.size()};
    (void)client.try_write({&all, 1});
    for (;;) {
      client.await(POLLIN, soon());
      (void)client.read_some(request);
    }
  }

  muster::detail::tcp_socket listener_;
  std::string where_;
  std::string answer_;
  std::jthread thread_;
};

}  // namespace

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
  auto current = store.get("key", soon());  // the swap may have happened, or may still happen
  CHECK((current.value == "one" || current.value == "two"));
  std::jthread writer([&, last = current]() mutable {
    for (bool swapped = false; !swapped;) {
      const auto outcome = store.compare_and_swap("key", last.version, "three", soon());
      swapped = outcome.swapped;
      last = outcome.now;
    }
  });
  while (current.value != "three") current = store.watch("key", current.version, soon()).value();
  writer.join();
  server.end();
  CHECK_THROWS_AS(store.get("key", shortly()), muster::timeout_error);
  CHECK_THROWS_AS(store.compare_and_swap("key", first.version, "four", shortly()), muster::timeout_error);
}

// An earlier version removed the keys of a job whose leases had expired when an onlooker read them.
TEST_CASE("an onlooker reads an etcd, and leaves the keys there when no process is present") {
  if (!places::has_etcd()) SUCCEED("SKIPPED: there is no etcd");
  if (!places::has_etcd()) return;
  const auto& server = places::an_etcd();
  muster::detail::etcd_client other(server.address(), "http");
  const auto key = muster::detail::to_base64("muster/looked-at/k/record");
  (void)other.ask("put", {}, "/v3/kv/put", {{"key", key}, {"value", muster::detail::to_base64("of a job")}}, soon(),
                  muster::detail::etcd_client::when_lost::again);
  for (int look = 0; look < 2; ++look) {
    muster::etcd_store store(server.address(), "http", "looked-at", soon(), muster::store_role::onlooker);
    const auto found = store.get("record", soon());
    CHECK(found.value == "of a job");
    CHECK_THROWS_AS(store.compare_and_swap("record", found.version, "x", soon()), muster::configuration_error);
  }
  const muster::etcd_store begins(server.address(), "http", "looked-at", soon());  // and leaves the store empty
}

// A process that was disconnected for the whole lease had no presence any more, and the next process to begin
// removed all keys.
TEST_CASE("a process whose lease has expired is present again, and the next that begins finds what there was") {
  if (!places::has_etcd()) SUCCEED("SKIPPED: there is no etcd");
  if (!places::has_etcd()) return;
  const places::etcd_process server;
  using lost = muster::detail::etcd_client::when_lost;
  muster::detail::etcd_client other(server.address(), "http");
  // Returns the lease of the first process that is present.
  const auto present = [&] {
    const nlohmann::json range = {{"key", muster::detail::to_base64("muster/cut-off/p/")},
                                  {"range_end", muster::detail::to_base64("muster/cut-off/p0")}};
    const auto found = other.ask("get", {}, "/v3/kv/range", range, soon(), lost::again);
    return found.contains("kvs") ? muster::detail::number_in(found["kvs"].at(0), "lease") : 0;
  };
  muster::etcd_store store(server.address(), "http", "cut-off", soon());
  REQUIRE(store.compare_and_swap("key", 0, "kept", soon()).swapped);
  const auto first = present();
  REQUIRE(first != 0);
  (void)other.ask("close", {}, "/v3/lease/revoke", {{"ID", std::to_string(first)}}, soon(), lost::again);
  for (const auto until = soon(); present() == 0 && muster::clock::now() < until;)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(present() != 0);
  CHECK(present() != first);
  muster::etcd_store next(server.address(), "http", "cut-off", soon());
  CHECK(next.get("key", soon()).value == "kept");
  CHECK(store.compare_and_swap("mine", 0, "here", soon(), muster::store_life::of_client).swapped);
}

TEST_CASE("an etcd that cannot be reached or named is an error") {
  const auto shortly = muster::deadline_after(muster::seconds(0.2));
  CHECK_THROWS_AS(muster::etcd_store("127.0.0.1:1", "http", "x", shortly), muster::timeout_error);
  CHECK_THROWS_AS(muster::etcd_store("", "http", "x", shortly), muster::configuration_error);
  CHECK_THROWS_AS(muster::etcd_store("a:1,,b:2", "http", "x", shortly), muster::configuration_error);
}

// A reply with a code as text ended the process in an earlier version.
TEST_CASE("what stands before an etcd and is no etcd is waited for, whatever it says") {
  const auto open = [](const std::string& body, muster::clock::time_point until) {
    const proxy at(body);
    const muster::etcd_store store(at.where(), "http", "x", until);
  };
  for (const char* body : {"{\"code\":\"ServiceUnavailable\"}", "{\"code\":[3],\"message\":7}", "{\"message\":{}}",
                           "{}", "[1]", "null", "<html>", ""}) {
    CAPTURE(body);
    CHECK_THROWS_AS(open(body, muster::deadline_after(muster::seconds(0.2))), muster::timeout_error);
  }
  CHECK_THROWS_AS(open("{\"code\":3,\"message\":[\"no\"]}", soon()), muster::configuration_error);
}
