// A worker alone, and its reaction to lost servers.
#include <muster/ps/protocol/worker.hpp>

#include "catch.hpp"

namespace ps = muster::ps;

namespace {

struct silent_output final : ps::worker_output {
  void send(const ps::member&, const ps::message&) override {}
  void on_acknowledged(ps::range_id, std::uint64_t, std::uint32_t) override {}
  void on_values(std::uint64_t, const ps::message&) override {}
  void on_refused(std::string_view) override {}
};

}  // namespace

TEST_CASE("a worker writes servers off that were the last to hold a range, when they had time to write it off") {
  const auto replicas = static_cast<std::uint32_t>(GENERATE(0, 1));
  CAPTURE(replicas);
  const ps::protocol_settings settings;
  const ps::member self{2, 1};
  const auto map = ps::first_map({{.node = {0, 1}}, {.node = {1, 1}}}, {self, {3, 1}}, 8, replicas);
  CHECK_FALSE(map.lost_range());
  silent_output out;
  ps::worker worker(self, settings, out, map);
  auto now = muster::clock::time_point{} + std::chrono::hours(1);
  worker.lose(3, now);  // another worker, with which no range is lost
  worker.lose(0, now);
  CHECK_FALSE(
      worker.without_lost_holders(now + settings.one_sided_break + settings.retry + settings.detection_silence));
  now += settings.one_sided_break + settings.retry + 2 * settings.detection_silence + std::chrono::milliseconds(1);
  auto next = worker.without_lost_holders(now);
  REQUIRE(next.has_value() == (replicas == 0));  // otherwise other servers have its ranges, and remove it
  if (replicas > 0) {
    worker.lose(1, now);
    CHECK_FALSE(worker.without_lost_holders(now));
    next = worker.without_lost_holders(now + std::chrono::hours(1));
    REQUIRE(next.has_value());
  }
  CHECK(next->version == map.version + 1);
  CHECK_FALSE(next->server(0));
  CHECK((next->server(1) != nullptr) == (replicas == 0));
  CHECK(next->lost_range());
  CHECK(next->workers == map.workers);

  SECTION("not when it was taken out itself") {
    worker.apply_map(*ps::without_worker(map, self), now);
    CHECK_FALSE(worker.without_lost_holders(now + std::chrono::hours(1)));
  }
  SECTION("nor when it has no more to do: servers end then") {
    worker.leave();
    CHECK_FALSE(worker.without_lost_holders(now + std::chrono::hours(1)));
  }
}

// Before the fix the tail of a chain that was cut off, while the head had continued without it, answered a pull by a
// worker's clock. The clock covered pushes by a newer map, which the worker did not report while it had not read that
// map.
TEST_CASE("a worker says the newest map by which its pushes count, also before it has read it") {
  const ps::member server{0, 1}, self{1, 1};
  const auto map = ps::first_map({{.node = server}}, {self}, 1, 0);
  silent_output out;
  ps::worker worker(self, {}, out, map);
  CHECK(worker.newest_map() == map.version);
  std::vector<std::byte> frame(ps::frame_head_bytes + ps::encoded_bytes(0));
  ps::encode(ps::frame_head{.sender = server, .receiver_incarnation = 1, .map_version = map.version + 1}, frame.data());
  ps::encode(ps::message{.kind = ps::message_kind::alive}, frame.data() + ps::frame_head_bytes);
  worker.on_frame(frame, muster::clock::now());
  CHECK(worker.map().version == map.version);
  CHECK(worker.newest_map() == map.version + 1);
  worker.note_map_version(map.version + 3);  // as another worker reported
  worker.note_map_version(map.version + 2);
  CHECK(worker.newest_map() == map.version + 3);
}
