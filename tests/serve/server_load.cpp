// Tests that replace models and end servers while clients send requests as fast as possible.
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "running_server.hpp"

using namespace served;

namespace {

/// Clients that send requests as fast as possible until the server ends.
struct clients {
  std::atomic<int> requests{0}, failed{0};
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;

  clients(std::uint16_t port, int count) {
    for (int t = 0; t < count; ++t) threads.emplace_back([this, port, t] { work(port, t); });
  }
  ~clients() { join(); }
  void await(int more) const {
    const int start_count = requests;
    while (requests < start_count + more) std::this_thread::yield();
  }
  void join() {
    ends = true;
    for (auto& each : threads) {
      if (each.joinable()) each.join();
    }
  }

 private:
  void work(std::uint16_t port, int t) {
    const std::string number = std::to_string(t);
    const std::string request = post(infer, v2("[1,2,2]", "[" + number + ",0,0,0]"));
    std::optional<http_client> client;
    while (!ends) {
      try {
        if (!client) client.emplace(port);
      } catch (const std::runtime_error&) {
        return;  // no process listens any more
      }
      const auto reply = client->ask(request);
      ++requests;
      if (!reply || reply->status != 200) {
        ++failed;
        return;
      }
      const auto at = reply->body.find("\"model_version\":\"") + 17;
      const int version = std::stoi(reply->body.substr(at));
      if (reply->body.find("[" + std::to_string(version * t) + "," + number + "]") == std::string::npos) ++failed;
      if (reply->closes()) client.reset();
    }
  }
};

}  // namespace

TEST_CASE("a model is swapped under load without a failed request") {
  running_server running({.threads = 2});
  clients load(running.port(), 4);
  for (int version = 2; version <= 12; ++version) {
    running.add("sums", version);
    running.models->scan();
    load.await(20);
  }
  load.join();
  CHECK(load.failed == 0);
  CHECK(running.ask(get("/v2/models/sums")).body.find(R"("versions":["12"])") != std::string::npos);
}

TEST_CASE("a server drains under load without a failed request, and run returns") {
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::optional<running_server> running;
    running.emplace(serve::server_options{.threads = 2});
    http_client idle(running->port());
    CHECK(idle.ask(get("/v2")).value().status == 200);
    clients load(running->port(), 4);
    load.await(50);
    const auto port = running->port();
    running.reset();
    CHECK(idle.is_closed());
    load.join();
    CHECK(load.failed == 0);
    CHECK_THROWS(http_client(port));
  }
}

TEST_CASE("a server that drains is not ready, and closes after each answer") {
  running_server running({.drain_delay = muster::seconds(0.05)});
  running.gate->block();
  http_client slow(running.port()), second(running.port());
  slow.send(post(infer, v2("[1,2,2]", "[1,2,3,4]")));
  CHECK(second.ask(get("/v2")).value().status == 200);
  running.gate->await_blocked();
  running.server->drain();
  const auto reply = second.ask(get("/v2/health/ready"));
  if (reply) {  // otherwise the delay had passed
    CHECK(reply->status == 503);
    CHECK(reply->closes());
  }
  running.gate->release();
  const auto answered = slow.receive().value();
  CHECK(answered.status == 200);
  CHECK(answered.closes());
}
