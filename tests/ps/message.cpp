// Words of the parameter server as bytes.
#include "ps/protocol/message.hpp"

#include <muster/core/random.hpp>

#include "catch.hpp"
#include "fuzz/ps.hpp"

namespace ps = muster::ps;

namespace {

std::vector<std::byte> some_frame(muster::random_stream& draw, std::vector<ps::message>& messages,
                                  std::vector<std::vector<std::byte>>& payloads) {
  std::vector<std::byte> frame(ps::frame_head_bytes);
  ps::encode(ps::frame_head{.from = {7, 2}, .to = 3, .map_version = 11, .clock = 13}, frame.data());
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
    CHECK(head->from == ps::member{7, 2});
    CHECK(head->map_version == 11);
    CHECK(head->clock == 13);
    const std::span<const std::byte> bytes(frame);
    ps::message_reader in(bytes.subspan(ps::frame_head_bytes));
    ps::message said;
    for (const auto& expected : messages) {
      REQUIRE(in.next(said));
      CHECK(said.what == expected.what);
      CHECK(said.flags == expected.flags);
      CHECK(said.range == expected.range);
      CHECK(said.offset == expected.offset);
      CHECK(said.count == expected.count);
      CHECK(said.number == expected.number);
      CHECK(said.version == expected.version);
      CHECK(said.clock == expected.clock);
      CHECK(said.scale == expected.scale);
      CHECK(std::ranges::equal(said.payload, expected.payload));
    }
    CHECK_FALSE(in.next(said));
    CHECK(in.whole());
  }
}

TEST_CASE("a payload may come by itself, behind the head of its message") {
  const std::vector<std::byte> payload(40, std::byte{7});
  const ps::message sent{.what = ps::message_kind::push, .range = 3, .count = 10, .number = 5, .payload = payload};
  std::vector<std::byte> frame(ps::frame_head_bytes + ps::message_head_bytes);
  ps::encode(ps::frame_head{.from = {7, 2}, .to = 1, .map_version = 11, .clock = 13}, frame.data());
  ps::encode_head(sent, payload.size(), frame.data() + ps::frame_head_bytes);
  const auto head = std::span<const std::byte>(frame).subspan(ps::frame_head_bytes);
  const auto announced = ps::decode_message(head.first<ps::message_head_bytes>());
  REQUIRE(announced);
  CHECK(announced->bytes == payload.size());
  CHECK(announced->number == 5);
  ps::message said;
  ps::message_reader in(head, payload);
  REQUIRE(in.next(said));
  CHECK(said.payload.data() == payload.data());
  CHECK(said.payload.size() == payload.size());
  CHECK(said.range == 3);
  CHECK_FALSE(in.next(said));
  CHECK(in.whole());
  // Of another length it is not its payload, and without one there is none.
  CHECK_FALSE(ps::message_reader(head, std::span(payload).first(39)).next(said));
  CHECK_FALSE(ps::message_reader(head).next(said));
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
      .weight = 0.25f, .from = {3, 4}, .push = {.offset = 7, .count = 8, .number = 5, .clock = 6, .scale = 3.0f}};
  std::vector<std::byte> body(ps::log_entry_head_bytes + 9);
  ps::encode_head(entry, body.data());
  const auto read = ps::decode_entry(body);
  REQUIRE(read);
  CHECK(read->from == entry.from);
  CHECK(read->push.number == 5);
  CHECK(read->push.clock == 6);
  CHECK(read->push.offset == 7);
  CHECK(read->push.count == 8);
  CHECK(read->weight == 0.25f);
  CHECK(read->push.scale == 3.0f);
  CHECK(read->push.payload.size() == 9);
}
