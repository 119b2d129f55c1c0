// A server and a worker without other processes: the server's reaction to pushes that the public calls would not send.
#include <muster/ps/protocol/server_protocol.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/core/error.hpp>

#include <muster/ps/runtime/server_process.hpp>
#include <muster/ps/runtime/worker_process.hpp>
#include "bare_server.hpp"
#include "catch.hpp"
#include "jobs.hpp"

namespace {

/// Rank 1 serves these tables to rank 0. Rank 0 runs `work` with the worker process of the client.
void serve_one(const ps::job_options& options, const std::function<void(ps::detail::worker_process&)>& work) {
  const muster::memory_store store;
  const ps::table_layout layout(options.tables, 1);
  const auto first = ps::first_map({{.node = {1, 1}}}, {{0, 1}}, layout.ranges(), 0);
  std::atomic<ps::detail::server_process*> serving{nullptr};
  test::run_ranks(test::fabric::threads, 2, [&](muster::group& world) {
    const ps::member self{static_cast<ps::node_id>(world.rank()), 1};
    ps::protocol_settings protocol{.model = options.consistency_model};
    const ps::detail::process_setup setup{
        self,   options, protocol, layout, world.transport(), std::make_shared<muster::memory_store>(store),
        "ps/1", first};
    if (world.rank() == 1) {
      ps::detail::server_process server(setup);
      serving = &server;
      return server.serve();
    }
    ps::detail::worker_process worker(setup);
    work(worker);
    while (serving == nullptr) std::this_thread::yield();
    serving.load()->stop();
  });
}

}  // namespace

TEST_CASE("a process begins with the map that the store has, and not with the one that it made itself") {
  const ps::job_options options{.tables = {{.name = "dense", .size = 100}}};
  const ps::table_layout layout(options.tables, 2);
  const auto stored = ps::first_map({{.node = {1, 1}}, {.node = {2, 1}}}, {{0, 1}}, layout.ranges(), 0);
  const auto own = ps::first_map({{.node = {1, 1}}}, {{0, 1}}, layout.ranges(), 0);
  test::run_ranks(test::fabric::threads, 1, [&](muster::group& world) {
    const std::shared_ptr<muster::any_store> store = std::make_shared<muster::memory_store>();
    (void)store->compare_and_swap("ps/1", 0, stored.encode(), muster::deadline_after(muster::seconds(60)));
    const ps::protocol_settings protocol{.model = options.consistency_model};
    const ps::detail::process_setup setup{{0, 1}, options, protocol, layout, world.transport(), store, "ps/1", own};
    const ps::detail::worker_process worker(setup);
    require(worker.core().map() == stored, "it has a map of its own");
  });
}

TEST_CASE("a worker that no server answers says in short how many seconds it waited") {
  ps::job_options options{.tables = {{.name = "dense", .size = 100}}};
  options.timeout = muster::seconds(0.5);
  const ps::table_layout layout(options.tables, 1);
  const auto map = ps::first_map({{.node = {1, 1}}}, {{0, 1}}, layout.ranges(), 0);
  std::string text;
  test::run_ranks(test::fabric::threads, 1, [&](muster::group& world) {
    const std::shared_ptr<muster::any_store> store = std::make_shared<muster::memory_store>();
    const ps::protocol_settings protocol{.model = options.consistency_model,
                                         .detection_silence = std::chrono::milliseconds(100)};
    const ps::detail::process_setup setup{{0, 1}, options, protocol, layout, world.transport(), store, "ps/1", map};
    ps::detail::worker_process worker(setup);
    std::vector<float> values(100);
    try {
      worker.tables.pull(0, values);
    } catch (const muster::timeout_error& late) {
      text = late.what();
    }
  });
  CHECK_THAT(text, contains("has not ended within 0.5 s ("));
}

TEST_CASE("a server hears the farewell of a worker that others have taken out of the map") {
  bare_server server({.tables = {{.name = "v", .size = 8}}}, 1);
  constexpr ps::node_id taken_out = 7;
  CHECK(server.deliver(taken_out, {.kind = ps::message_kind::pulse}).at(0).msg.kind == ps::message_kind::fenced);
  CHECK_FALSE(server.core.received_farewell());
  (void)server.deliver(taken_out, {.kind = ps::message_kind::pulse, .flags = ps::is_farewell});
  CHECK(server.core.received_farewell());
}

TEST_CASE("a server that is asked for a range that its job does not have says how many there are") {
  bare_server server({.tables = {{.name = "v", .size = 8}, {.name = "w", .size = 8}}}, 1);
  const std::vector<std::byte> payload(4);
  for (const auto kind : {ps::message_kind::push, ps::message_kind::pull}) {
    const auto replies = server.deliver(1, {.kind = kind, .range = 2, .count = 1, .number = 1, .payload = payload});
    REQUIRE(replies.size() == 1);
    CHECK(replies[0].msg.kind == ps::message_kind::refused);
    CHECK_THAT(replies[0].payload, contains("range 2 is refused by server 0 (the job has 2 ranges)"));
  }
}

TEST_CASE("a damaged copy of an order changes nothing of the one that a server has") {
  bare_server server({.tables = {{.name = "order", .leases = true}}}, 1);
  const auto saved = [&] {
    muster::detail::wire_writer out;
    server.values.save(0, out);
    return out.bytes();
  };
  const auto fresh = saved();
  ps::order_plan plan;
  plan.from.batch = plan.from.size = 4;
  server.values.apply(0, {.sender = {1, 1},
                          .push = {.kind = ps::message_kind::push,
                                   .flags = ps::leases,
                                   .offset = static_cast<std::uint32_t>(ps::order_request::begin),
                                   .payload = std::as_bytes(std::span(&plan, 1))}});
  const auto started = saved();
  REQUIRE(started != fresh);
  CHECK_FALSE(server.values.load(0, std::span(fresh).first(fresh.size() - 1)));
  CHECK(saved() == started);
  REQUIRE(server.values.load(0, fresh));
  CHECK(saved() == fresh);
}

TEST_CASE("a push or pull that a server cannot carry out fails at once with what is wrong") {
  const std::vector<std::byte> payload(1000);
  const auto bytes = [&](std::size_t count) { return std::span(payload).first(count); };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct wrong {
    ps::range_id range;
    ps::message request;
    const char* reason;
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
  for (const auto& [range, request, reason] : cases) {
    CAPTURE(reason);
    std::string text;
    serve_one(options, [&, target = range, wrong = request](ps::detail::worker_process& worker) {
      ps::pending push;
      worker.push_part(push, target, wrong);
      try {
        push.wait();
      } catch (const muster::configuration_error& refused) {
        text = refused.what();
      } catch (const muster::error& other) {
        text = "another error: " + std::string(other.what());
      }
    });
    CHECK_THAT(text, contains(reason));
    CHECK_THAT(text, contains("push 1 of worker 0 to range " + std::to_string(range)));
  }
}

namespace {

ps::job_options bulk_options() {
  return {.tables = {{.name = "w", .size = 4, .update = "sgd:1"}}, .consistency_model = ps::parse_consistency("bulk")};
}

}  // namespace

// Floating-point sums depend on the order: 1e8 and -1e8 leave 1 only if they are added first.
TEST_CASE("a bulk-synchronous sum is added in the order of workers, in whatever order pushes come") {
  const float values[][4] = {{1e8f, 1, 3e7f, 1}, {-1e8f, 1e8f, 1, 2}, {1, -1e8f, -3e7f, 3}};
  std::vector<int> order = {0, 1, 2};
  std::vector<float> expected;
  for (std::size_t k = 0; k < 4; ++k) {
    float sum = 0;
    for (const auto& row : values) sum += row[k];
    expected.push_back(-sum);
  }
  do {
    CAPTURE(order);
    bare_server server(bulk_options(), 3);
    for (const int worker : order) {
      server.deliver(1 + static_cast<ps::node_id>(worker), {.kind = ps::message_kind::push,
                                                            .count = 4,
                                                            .number = 1,
                                                            .payload = std::as_bytes(std::span(values[worker]))});
    }
    for (ps::node_id worker = 1; worker <= 3; ++worker)
      server.deliver(worker, {.kind = ps::message_kind::pulse, .number = 1}, 1);
    const auto answer = server.deliver(1, {.kind = ps::message_kind::pull, .count = 4, .number = 1, .clock = 1}, 1);
    REQUIRE(receivers_of(answer, ps::message_kind::values).size() == 1);
    std::vector<float> found(4);
    std::memcpy(found.data(), answer[0].payload.data(), answer[0].payload.size());
    CHECK(found == expected);
  } while (std::ranges::next_permutation(order).found);
}

TEST_CASE(
    "a bulk-synchronous server keeps the sum of one clock: a push of a later one waits for its turn at its worker") {
  bare_server server(bulk_options(), 2);
  const float ones[] = {1, 1, 1, 1};
  const auto push = [&](ps::node_id worker, std::uint64_t number, std::uint64_t clock) {
    return server.deliver(worker,
                          {.kind = ps::message_kind::push,
                           .count = 4,
                           .number = number,
                           .clock = clock,
                           .payload = std::as_bytes(std::span(ones))},
                          clock);
  };
  CHECK(receivers_of(push(1, 1, 0), ps::message_kind::ack).size() == 1);
  // The first worker is ahead of the second. Its push is neither kept nor acknowledged, and the server requests it
  // again only when its clock opens.
  for (std::uint64_t clock = 1; clock < 4; ++clock) CHECK(push(1, clock + 1, clock).empty());
  CHECK(server.core.version(0) == 1);
  CHECK(receivers_of(push(2, 1, 0), ps::message_kind::ack).size() == 1);
  const auto sent = server.deliver(2, {.kind = ps::message_kind::pulse, .number = 1}, 1);
  CHECK(server.core.version(0) == 3);  // two pushes and their sum
  CHECK(receivers_of(sent, ps::message_kind::resend) == std::vector<ps::member>{{1, 1}});
  CHECK(receivers_of(push(1, 2, 1), ps::message_kind::ack).size() == 1);
  CHECK(push(1, 3, 2).empty());
}

TEST_CASE("pushes of one bulk-synchronous clock have one scale: another is refused") {
  bare_server server(bulk_options(), 2);
  const float ones[] = {1, 1, 1, 1};
  const auto push = [&](ps::node_id worker, std::uint64_t number, std::uint64_t clock, float scale) {
    return server.deliver(worker,
                          {.kind = ps::message_kind::push,
                           .count = 4,
                           .number = number,
                           .clock = clock,
                           .scale = scale,
                           .payload = std::as_bytes(std::span(ones))},
                          clock);
  };
  CHECK(receivers_of(push(1, 1, 0, 0.5f), ps::message_kind::ack).size() == 1);
  const auto sent = push(2, 1, 0, 0.25f);
  REQUIRE(receivers_of(sent, ps::message_kind::refused).size() == 1);
  CHECK_THAT(sent[0].payload, contains("its scale is 0.250000, and the other pushes of clock 0 have 0.500000"));
  CHECK(receivers_of(push(2, 1, 0, 0.5f), ps::message_kind::ack).size() == 1);
  server.deliver(1, {.kind = ps::message_kind::pulse, .number = 1}, 1);
  server.deliver(2, {.kind = ps::message_kind::pulse, .number = 1}, 1);
  const auto answer = server.deliver(1, {.kind = ps::message_kind::pull, .count = 4, .number = 1, .clock = 1}, 1);
  REQUIRE(answer.size() == 1);
  float found = 0;
  std::memcpy(&found, answer[0].payload.data(), sizeof found);
  CHECK(found == -1.0f);                                                         // twice one, with half the rate
  CHECK(receivers_of(push(1, 2, 1, 0.25f), ps::message_kind::ack).size() == 1);  // each clock has its own scale
}

// Lets time pass, while messages from these processes arrive.
void live(bare_server& server, muster::clock::time_point& now, muster::clock::duration span,
          const std::vector<ps::node_id>& responsive) {
  const auto step = ps::protocol_settings{}.retry / 10;
  for (const auto until = now + span; now < until; now += step) {
    for (const ps::node_id peer : responsive) {
      std::vector<std::byte> frame(ps::frame_head_bytes);
      ps::encode(ps::frame_head{.sender = {peer, 1}, .receiver_incarnation = 1, .map_version = server.map.version},
                 frame.data());
      server.core.on_frame(frame, now);
    }
    server.core.tick(now);
  }
}

// A server that runs again after a stop finds that other processes have ended their connections to it. Before the fix
// it fenced the first such processes while they were less than half, so that they had to leave.
TEST_CASE("a server that was stopped gives no peer up before the others could give up the server") {
  const bool stops = GENERATE(true, false);
  CAPTURE(stops);
  bare_server server({.tables = {{.name = "w", .size = 8}}}, 2, 2);  // servers 0 to 2, workers 3 and 4
  const ps::protocol_settings usual;
  auto now = muster::clock::time_point{} + std::chrono::hours(1);
  live(server, now, usual.detection_silence / 2, {2, 4});
  if (stops) now += 2 * usual.detection_silence;
  server.core.suspect({1, 1}, false);
  server.core.suspect({3, 1}, false);
  live(server, now, usual.detection_silence / 2, {2, 4});
  CHECK(server.proposed_map.has_value() == !stops);
  live(server, now, usual.detection_silence, {2, 4});
  REQUIRE(server.proposed_map.has_value());  // no server fenced it, so the unreachable processes are at fault
  CHECK(!server.proposed_map->has_server({1, 1}));
  CHECK(!server.proposed_map->has_worker({3, 1}));
  CHECK(server.proposed_map->has_server({2, 1}));
}

// A server that is cut off misses other servers by their silence or by their connections. Workers may be silent for
// long, so their silence is no sign then.
TEST_CASE("a server gives up those that it misses later where it hears no others, too") {
  const bool breaks = GENERATE(true, false);
  const bool returns = GENERATE(true, false);  // in time
  CAPTURE(breaks, returns);
  bare_server server({.tables = {{.name = "w", .size = 8}}}, 2, 2);  // servers 0 to 2, workers 3 and 4
  const ps::protocol_settings usual;
  auto now = muster::clock::time_point{} + std::chrono::hours(1);
  live(server, now, usual.detection_silence / 2, {1, 2, 3, 4});
  if (breaks) server.core.on_disconnect({4, 1}, now);
  const std::vector<ps::node_id> responsive = returns ? std::vector<ps::node_id>{3, 4} : std::vector<ps::node_id>{};
  live(server, now, usual.detection_silence + 2 * usual.retry, responsive);
  CHECK(server.proposed_map.has_value() == returns);
  live(server, now, usual.detection_silence, responsive);
  REQUIRE(server.proposed_map.has_value());
  CHECK(!server.proposed_map->has_server({1, 1}));
  CHECK(!server.proposed_map->has_server({2, 1}));
  CHECK(server.proposed_map->has_worker({4, 1}));  // the worker is not certainly lost
}

// After a network failure the connections return one after the other. Before the fix the server fenced the last missing
// process as soon as most connections had returned.
TEST_CASE("a server that was cut off gives each of the others the same time to come back") {
  bare_server server({.tables = {{.name = "w", .size = 8}}}, 2, 2);  // servers 0 to 2, workers 3 and 4
  const ps::protocol_settings usual;
  auto now = muster::clock::time_point{} + std::chrono::hours(1);
  live(server, now, usual.detection_silence, {1, 2, 3, 4});
  server.core.on_disconnect({3, 1}, now);
  server.core.on_disconnect({4, 1}, now);
  live(server, now, usual.detection_silence + 2 * usual.retry, {});
  live(server, now, usual.detection_silence, {2, 3, 4});
  CHECK(!server.proposed_map);
  live(server, now, 2 * usual.retry, {2, 3, 4});
  REQUIRE(server.proposed_map.has_value());
  CHECK(!server.proposed_map->has_server({1, 1}));
  CHECK(server.proposed_map->has_server({2, 1}));
}
