// The servers of a chain: copies for servers that learn a range.
#include <muster/ps/protocol/server_protocol.hpp>

#include <vector>

#include "bare_server.hpp"
#include "catch.hpp"

namespace {

/// Server 0 and its learner at place 5.
struct with_learner : bare_server {
  explicit with_learner(const ps::job_options& options, std::size_t piece = ps::most_payload)
      : bare_server(options, 1, 0, 0, piece) {
    map.servers.push_back({.node = {learner, 1}});
    map.ranges[0].learner = learner;
    map.ranges[0].epoch = ++map.version;
    core.apply_map(map, now);
  }
  std::vector<sent_message> acknowledge(std::uint64_t applied, std::uint8_t flags = 0) {
    return deliver(learner,
                   {.kind = ps::message_kind::copied, .flags = flags, .number = applied, .clock = map.version});
  }
  void push() {
    const float ones[8] = {};
    (void)deliver(
        1, {.kind = ps::message_kind::push, .count = 8, .number = ++pushed, .payload = std::as_bytes(std::span(ones))});
  }

  static constexpr ps::node_id learner = 5;
  std::uint64_t pushed = 0;
};

std::size_t copies_of(const std::vector<bare_server::sent_message>& sent) {
  return receivers_of(sent, ps::message_kind::copy).size();
}

}  // namespace

// Before the fix each offer that crossed a large copy was answered with another copy, which discarded the log. The
// pushes between the two copies were in no copy that the learner had, so that the learner received a third copy, and
// further copies while pushes arrived.
TEST_CASE("a learner whose copy is under way gets no other, and then what was pushed meanwhile") {
  constexpr std::uint8_t has_nothing = 1;
  with_learner server({.tables = {{.name = "w", .size = 8}}});
  CHECK(copies_of(server.acknowledge(0, has_nothing)) == 1);
  server.push();
  CHECK(copies_of(server.acknowledge(0, has_nothing)) == 0);
  CHECK(receivers_of(server.acknowledge(0), ps::message_kind::entry).size() == 1);
  CHECK(server.acknowledge(1).empty());
}

TEST_CASE("a copy that was lost is sent again: at once where the link was, else when it has had longer than the last") {
  constexpr std::uint8_t has_nothing = 1;
  const auto silence = ps::protocol_settings{}.detection_silence;
  with_learner server({.tables = {{.name = "w", .size = 8}}});
  CHECK(copies_of(server.acknowledge(0, has_nothing)) == 1);
  server.now += silence;
  CHECK(copies_of(server.acknowledge(0, has_nothing)) == 1);
  server.now += silence;
  CHECK(copies_of(server.acknowledge(0, has_nothing)) == 0);
  server.now += silence;
  CHECK(copies_of(server.acknowledge(0, has_nothing)) == 1);
  server.core.send_again();
  CHECK(copies_of(server.acknowledge(0, has_nothing)) == 1);
}

// Before the fix the head stopped serving at once, so that the training waited while the store did not answer.
TEST_CASE("a head that wants to leave takes pushes until the map is without it") {
  bare_server server({.tables = {{.name = "w", .size = 8}}}, 1, 1);  // servers 0 and 1, worker 2
  server.map.ranges[0].chain = {0, 1};
  server.map.ranges[0].leaver = 0;
  server.map.ranges[0].epoch = ++server.map.version;
  server.core.apply_map(server.map, server.now);
  (void)server.deliver(1, {.kind = ps::message_kind::copied, .clock = server.map.version});
  server.core.tick(server.now);
  REQUIRE(server.proposed_map.has_value());
  CHECK(server.proposed_map->ranges[0].chain == std::vector<ps::node_id>{1});
  const float ones[8] = {};
  const auto sent = server.deliver(
      2, {.kind = ps::message_kind::push, .count = 8, .number = 1, .payload = std::as_bytes(std::span(ones))});
  CHECK(receivers_of(sent, ps::message_kind::entry) == std::vector<ps::member>{{1, 1}});
}

// Before the fix a tail that was removed from the chain, and had not read the new map, answered a worker with the same
// map. The values lacked later pushes.
TEST_CASE("a server says the newest map that it has heard of, and answers no pull before it has read that") {
  bare_server server({.tables = {{.name = "w", .size = 8}}}, 1);
  CHECK(server.core.newest_map() == server.map.version);
  const ps::message pull{.kind = ps::message_kind::pull, .flags = ps::saves, .number = 1};
  CHECK(receivers_of(server.deliver(1, pull), ps::message_kind::values).size() == 1);
  ++server.map.version;  // as the received frames report
  CHECK(server.deliver(1, pull).empty());
  CHECK(server.core.newest_map() == server.map.version);
  server.core.apply_map(server.map, server.now);
  CHECK(receivers_of(server.deliver(1, {}), ps::message_kind::values).size() == 1);
}

// Before the fix a copy above 1 GiB was no valid message: the receiver ignored it, and each attempt left a copy in
// memory.
TEST_CASE("a copy that is larger than a message comes in pieces, in any order") {
  constexpr std::uint8_t has_nothing = 1;
  const ps::job_options options{.tables = {{.name = "w", .size = 8}}};
  with_learner server(options, 16);
  server.push();
  bare_server learner(options, 1, 0, server.learner);
  learner.core.apply_map(server.map, server.now);
  const auto pieces = server.acknowledge(0, has_nothing);
  REQUIRE(copies_of(pieces) == pieces.size());
  REQUIRE(pieces.size() > 2);
  const auto answers = [&](const bare_server::sent_message& piece) {
    ps::message msg = piece.msg;
    msg.payload = std::as_bytes(std::span(piece.payload));
    return receivers_of(learner.deliver(0, msg), ps::message_kind::copied).size();
  };
  CHECK(answers(pieces.back()) == 0);  // before the other pieces
  for (std::size_t i = 1; i < pieces.size(); ++i) CHECK(answers(pieces[i]) == 0);
  CHECK(answers(pieces.back()) == 0);  // the same piece again
  CHECK(answers(pieces.front()) == 1);
  CHECK(learner.core.version(0) == 1);
}

namespace {

/// Values that do not fit into a message.
struct vast_storage final : ps::range_storage {
  [[nodiscard]] std::string problem_with(ps::range_id, const ps::message&) const override { return {}; }
  void apply(ps::range_id, const ps::log_entry&) override {}
  [[nodiscard]] std::span<const std::byte> read(ps::range_id, const ps::message&) override {
    return {reinterpret_cast<const std::byte*>(this), ps::most_payload + 1};  // the bytes are never read
  }
  void save(ps::range_id, muster::detail::wire_writer&) const override {}
  [[nodiscard]] bool load(ps::range_id, std::span<const std::byte>) override { return true; }
  void reset(ps::range_id) override {}
};

}  // namespace

TEST_CASE("values that are larger than a message are refused") {
  bare_server output({.tables = {{.name = "w", .size = 8}}}, 1);
  vast_storage values;
  ps::server core({0, 1}, {}, values, output, output.map);
  std::vector<std::byte> frame(ps::frame_head_bytes + ps::encoded_bytes(0));
  ps::encode(ps::frame_head{.sender = {1, 1}, .receiver_incarnation = 1, .map_version = output.map.version},
             frame.data());
  ps::encode(ps::message{.kind = ps::message_kind::pull, .flags = ps::saves, .number = 1},
             frame.data() + ps::frame_head_bytes);
  core.on_frame(frame, output.now);
  REQUIRE(receivers_of(output.sent, ps::message_kind::refused).size() == 1);
  CHECK_THAT(output.sent[0].payload, contains("and a message has at most 1073741824); give its table more ranges"));
}
