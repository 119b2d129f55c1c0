// A server's process, and its reaction to the end of other processes.
#include <muster/ps/runtime/server_process.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include <muster/comm/bootstrap/memory_store.hpp>

#include "catch.hpp"
#include "jobs.hpp"

namespace {

/// Rank 1 is a process that may serve. It starts after rank 0 has announced that rank 0 ends. Then rank 0 runs `work`
/// with its link.
void end_before(const ps::shard_map& first, muster::memory_store store,
                const std::function<void(ps::detail::frame_link&)>& work) {
  const ps::job_options options{.tables = {{.name = "v", .size = 8}}};
  const ps::table_layout layout(options.tables, 1);
  const ps::protocol_settings protocol{.detection_silence = std::chrono::milliseconds(200)};
  std::atomic<bool> notified = false;
  std::atomic<bool> worked = false;
  test::run_ranks(test::fabric::threads, 2, [&](muster::group& world) {
    if (world.rank() == 0) {
      muster::control_message ends;
      ends.type = muster::control_message::kind::abort;
      world.transport().notify(1, ends);
      notified = true;
      ps::detail::frame_link link(world.transport());
      link.set_identity({.sender = {0, 1}, .map_version = 1});
      work(link);
      worked = true;
      return;
    }
    while (!notified) std::this_thread::yield();
    const ps::detail::process_setup setup{
        {1, 1}, options, protocol, layout, world.transport(), std::make_shared<muster::memory_store>(store),
        "ps/1", first};
    ps::detail::server_process server(setup);
    const std::jthread stopper([&] {
      while (!worked) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      server.stop();
    });
    server.serve();
    worked = true;
  });
}

ps::shard_map map_in(muster::memory_store& store) {
  return ps::shard_map::decode(store.get("ps/1", muster::deadline_after(muster::seconds(60))).value)
      .value_or(ps::shard_map());
}

/// Returns true if the map fulfils the condition within a time that is long on any machine.
bool becomes_true(muster::memory_store& store, const std::function<bool(const ps::shard_map&)>& holds,
                  const std::function<void()>& meanwhile) {
  for (const auto until = muster::deadline_after(muster::seconds(30)); muster::clock::now() < until;) {
    if (holds(map_in(store))) return true;
    meanwhile();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace

// Before the fix the worker's last frames, which arrived after its end, counted as heartbeats, and no other notice of
// the end followed.
TEST_CASE("a worker that has ended leaves the map, whatever else comes from it") {
  muster::memory_store store;
  bool left = false;
  end_before(ps::first_map({{.node = {1, 1}}}, {{0, 1}}, 1, 0), store, [&](ps::detail::frame_link& link) {
    left = becomes_true(
        store, [](const auto& map) { return map.version > 0 && map.workers.empty(); },
        [&] {
          link.send({1, 1}, {.kind = ps::message_kind::pulse});
          link.flush();
          (void)link.poll([](auto, auto) {});
        });
  });
  CHECK(left);
}

// Before the fix the hot spare was added and fenced at once, again and again, or fenced a server that all other
// processes could reach.
TEST_CASE("a hot spare that has lost a process of the map does not serve before the map is without that") {
  muster::memory_store store;
  auto map = ps::first_map({{.node = {2, 1}}}, {{0, 1}, {3, 1}}, 1, 0);
  map.target_servers = 2;
  bool offered = false;
  bool serves = false;
  end_before(map, store, [&](ps::detail::frame_link&) {
    const auto named = [](const ps::shard_map& map_now) { return map_now.server(1) != nullptr; };
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    offered = named(map_in(store));
    const auto until = muster::deadline_after(muster::seconds(60));
    const auto entry = store.get("ps/1", until);
    (void)store.compare_and_swap("ps/1", entry.version, ps::without_worker(map, {0, 1}).value().encode(), until);
    serves = becomes_true(store, named, [] {});
  });
  CHECK(!offered);
  CHECK(serves);
}
