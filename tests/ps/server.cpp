// A server and a worker beside each other: what a server makes of pushes that the public calls would not send.
#include <muster/ps/server.hpp>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <muster/comm/rendezvous/memory_store.hpp>
#include <muster/core/error.hpp>

#include "catch.hpp"
#include "jobs.hpp"
#include "ps/server_process.hpp"
#include "ps/worker_process.hpp"

namespace {

/// Rank 1 serves these tables to rank 0, which does `work` with the inside of its client.
void serve_one(const ps::job_options& options, const std::function<void(ps::detail::worker_process&)>& work) {
  const muster::memory_store store;
  const ps::table_layout layout(options.tables, 1);
  const auto first = ps::first_map({{.who = {1, 1}}}, {{0, 1}}, layout.ranges(), 0);
  std::atomic<ps::detail::server_process*> serving{nullptr};
  test::run_ranks(test::fabric::local, 2, [&](muster::group& world) {
    const ps::member self{static_cast<ps::place>(world.rank()), 1};
    ps::protocol_settings protocol{.how = options.how};
    ps::detail::map_keeper keeper(std::make_shared<muster::any_store>(std::make_unique<muster::memory_store>(store)),
                                  "ps/1", first, muster::deadline_after(options.timeout));
    ps::detail::frame_link link(world.transport());
    link.introduce({.from = self, .map_version = first.version});
    if (world.rank() == 1) {
      ps::detail::server_process server(self, options, protocol, layout, world.transport(), link, keeper, first, {});
      serving = &server;
      return server.serve();
    }
    ps::detail::worker_process worker(self, options, protocol, layout, link, keeper, first);
    work(worker);
    while (serving == nullptr) std::this_thread::yield();
    serving.load()->stop();
  });
}

/// A server without a process around it, and what it says.
struct bare_server final : ps::server_outlet {
  struct word {
    ps::member to;
    ps::message what;
    std::string payload;
  };
  bare_server(const ps::job_options& options, ps::place workers, std::uint32_t replicas = 0, ps::place self = 0)
      : layout(options.tables, 1),
        values(layout, options.how, options.compress, shown),
        map(map_of(workers, layout.ranges(), replicas)),
        core({self, 1}, {.how = options.how}, values, *this, map) {}
  static ps::shard_map map_of(ps::place workers, std::size_t ranges, std::uint32_t replicas) {
    std::vector<ps::server_entry> servers;
    std::vector<ps::member> all;
    for (ps::place at = 0; at <= replicas; ++at) servers.push_back({.who = {at, 1}});
    for (ps::place at = 0; at < workers; ++at) all.push_back({replicas + 1 + at, 1});
    return ps::first_map(servers, all, ranges, replicas);
  }
  void send(const ps::member& to, const ps::message& what) override {
    said.push_back({to, what, {reinterpret_cast<const char*>(what.payload.data()), what.payload.size()}});
  }
  void swap(std::uint64_t, const ps::shard_map&) override {}
  void look_for_map() override {}
  /// What it says to one message of that place, whose clock is `clock`.
  std::vector<word> hear(ps::place from, const ps::message& what, std::uint64_t clock = 0) {
    std::vector<std::byte> frame(ps::frame_head_bytes + ps::encoded_bytes(what.payload.size()));
    ps::encode(ps::frame_head{{from, 1}, 1, map.version, clock}, std::span(frame).first<ps::frame_head_bytes>());
    ps::encode(what, frame.data() + ps::frame_head_bytes);
    said.clear();
    core.hear(frame, muster::clock::now());
    core.flush();
    return said;
  }

  ps::table_layout layout;
  ps::detail::showcase shown;
  ps::detail::tables values;
  ps::shard_map map;
  std::vector<word> said;
  ps::server core;
};

}  // namespace

TEST_CASE("a server that is asked for a range that its job does not have says how many there are") {
  bare_server server({.tables = {{.name = "v", .size = 8}, {.name = "w", .size = 8}}}, 1);
  const std::vector<std::byte> payload(4);
  for (const auto kind : {ps::message_kind::push, ps::message_kind::pull}) {
    const auto said = server.hear(1, {.what = kind, .range = 2, .count = 1, .number = 1, .payload = payload});
    REQUIRE(said.size() == 1);
    CHECK(said[0].what.what == ps::message_kind::refused);
    CHECK_THAT(said[0].payload, contains("range 2 is refused by server 0 (the job has 2 ranges)"));
  }
}

TEST_CASE("a push or pull that a server cannot carry out fails at once with what is wrong") {
  const std::vector<std::byte> payload(1000);
  const auto bytes = [&](std::size_t count) { return std::span(payload).first(count); };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct wrong {
    ps::range_id range;
    ps::message what;
    const char* says;
  };
  const wrong cases[] = {
      {0, {.count = 10, .payload = bytes(8)}, "10 elements of table 'dense' are 40 bytes, not 8"},
      {0, {.offset = 90, .count = 20, .payload = bytes(80)}, "the range has elements 0 to 100, not 90 to 110"},
      {0, {.flags = 77, .payload = {}}, "flags 77"},
      {0, {.count = 1, .scale = nan, .payload = bytes(4)}, "its scale is nan"},
      {1, {.count = 3, .payload = bytes(25)}, "3 elements of table 'sparse' are 48 bytes, not 25"},
      {1, {.flags = ps::assigns, .count = 1, .payload = bytes(16)}, "flags 1"},
  };
  ps::job_options options{
      .tables = {{.name = "dense", .size = 100, .ranges = 1}, {.name = "sparse", .width = 2, .ranges = 1}}};
  options.timeout = muster::seconds(20);
  for (const auto& [range, what, says] : cases) {
    CAPTURE(says);
    std::string text;
    serve_one(options, [&](ps::detail::worker_process& worker) {
      ps::pending push;
      worker.push_part(push, range, what);
      try {
        push.wait();
      } catch (const muster::configuration_error& refused) {
        text = refused.what();
      } catch (const muster::error& other) {
        text = "another error: " + std::string(other.what());
      }
    });
    CHECK_THAT(text, contains(says));
    CHECK_THAT(text, contains("push 1 of worker 0 to range " + std::to_string(range)));
  }
}
