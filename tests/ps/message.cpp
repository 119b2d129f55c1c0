// Messages of the parameter server as bytes.
#include <muster/ps/protocol/message.hpp>

#include <muster/core/random.hpp>

#include "catch.hpp"
#include "fuzz/ps.hpp"

namespace ps = muster::ps;

namespace {

std::vector<std::byte> some_frame(muster::random_stream& draw, std::vector<ps::message>& messages,
                                  std::vector<std::vector<std::byte>>& payloads) {
  std::vector<std::byte> frame(ps::frame_head_bytes);
  ps::encode(ps::frame_head{.sender = {7, 2}, .receiver_incarnation = 3, .map_version = 11, .clock = 13}, frame.data());
  const auto count = draw.below(6);
  payloads.resize(count);
  for (auto& payload : payloads) {
    payload.resize(draw.below(100));
    for (auto& byte : payload) byte = static_cast<std::byte>(draw());
    messages.push_back({static_cast<ps::message_kind>(1 + draw.below(14)), static_cast<std::uint8_t>(draw()), 0,
                        static_cast<ps::range_id>(draw()), static_cast<std::uint32_t>(draw()),
                        static_cast<std::uint32_t>(draw()), draw(), draw(), draw(), 0.5f, 0, draw(), draw(), payload});
    const auto at = frame.size();
    frame.resize(at + ps::encoded_bytes(payload.size()));
    ps::encode(messages.back(), frame.data() + at);
  }
  return frame;
}

}  // namespace

TEST_CASE("a frame comes back as it was") {
  muster::random_stream draw(5);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<ps::message> messages;
    std::vector<std::vector<std::byte>> payloads;
    const auto frame = some_frame(draw, messages, payloads);
    const auto head = ps::decode_head(frame);
    REQUIRE(head);
    CHECK(head->sender == ps::member{7, 2});
    CHECK(head->map_version == 11);
    CHECK(head->clock == 13);
    const std::span<const std::byte> bytes(frame);
    ps::message_reader in(bytes.subspan(ps::frame_head_bytes));
    ps::message msg;
    for (const auto& expected : messages) {
      REQUIRE(in.next(msg));
      CHECK(msg.kind == expected.kind);
      CHECK(msg.flags == expected.flags);
      CHECK(msg.range == expected.range);
      CHECK(msg.offset == expected.offset);
      CHECK(msg.count == expected.count);
      CHECK(msg.number == expected.number);
      CHECK(msg.version == expected.version);
      CHECK(msg.clock == expected.clock);
      CHECK(msg.scale == expected.scale);
      CHECK(std::ranges::equal(msg.payload, expected.payload));
    }
    CHECK_FALSE(in.next(msg));
    CHECK(in.is_complete());
  }
}

TEST_CASE("a payload may come by itself, behind the head of its message") {
  const std::vector<std::byte> payload(40, std::byte{7});
  const ps::message sent{.kind = ps::message_kind::push, .range = 3, .count = 10, .number = 5, .payload = payload};
  std::vector<std::byte> frame(ps::frame_head_bytes + ps::message_head_bytes);
  ps::encode(ps::frame_head{.sender = {7, 2}, .receiver_incarnation = 1, .map_version = 11, .clock = 13}, frame.data());
  ps::encode_head(sent, payload.size(), frame.data() + ps::frame_head_bytes);
  const auto head = std::span<const std::byte>(frame).subspan(ps::frame_head_bytes);
  const auto announced = ps::decode_message(head.first<ps::message_head_bytes>());
  REQUIRE(announced);
  CHECK(announced->bytes == payload.size());
  CHECK(announced->number == 5);
  ps::message msg;
  ps::message_reader in(head, payload);
  REQUIRE(in.next(msg));
  CHECK(msg.payload.data() == payload.data());
  CHECK(msg.payload.size() == payload.size());
  CHECK(msg.range == 3);
  CHECK_FALSE(in.next(msg));
  CHECK(in.is_complete());
  // A payload of another length is rejected, and so is a missing payload.
  CHECK_FALSE(ps::message_reader(head, std::span(payload).first(39)).next(msg));
  CHECK_FALSE(ps::message_reader(head).next(msg));
}

TEST_CASE("no bytes are taken for more than they are") {
  muster::random_stream draw(6);
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<ps::message> messages;
    std::vector<std::vector<std::byte>> payloads;
    auto frame = some_frame(draw, messages, payloads);
    for (auto n = draw.below(4); n > 0; --n) frame[draw.below(frame.size())] = static_cast<std::byte>(draw());
    frame.resize(draw.below(frame.size() + 1));
    fuzz::check_ps({reinterpret_cast<const std::uint8_t*>(frame.data()), frame.size()});
  }
}

TEST_CASE("an entry of the log comes back as it was") {
  const ps::log_entry entry{
      .weight = 0.25f, .sender = {3, 4}, .push = {.offset = 7, .count = 8, .number = 5, .clock = 6, .scale = 3.0f}};
  std::vector<std::byte> body(ps::log_entry_head_bytes + 9);
  ps::encode_head(entry, body.data());
  const auto read = ps::decode_entry(body);
  REQUIRE(read);
  CHECK(read->sender == entry.sender);
  CHECK(read->push.number == 5);
  CHECK(read->push.clock == 6);
  CHECK(read->push.offset == 7);
  CHECK(read->push.count == 8);
  CHECK(read->weight == 0.25f);
  CHECK(read->push.scale == 3.0f);
  CHECK(read->push.payload.size() == 9);
}
