// The wire format: frames of arbitrary bytes, and handshakes.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <muster/comm/net/handshake.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"
#include "fuzz/frame.hpp"

using namespace muster::detail;  // NOLINT: this is about nothing else

namespace {

frame random_frame(muster::random_stream& random) {
  constexpr frame_kind kinds[] = {
      frame_kind::message, frame_kind::rts,     frame_kind::cts,  frame_kind::data,
      frame_kind::credit,  frame_kind::goodbye, frame_kind::beat, frame_kind::control_message};
  frame header;
  header.kind = kinds[random.below(std::size(kinds))];
  header.tag = static_cast<std::uint32_t>(random.below(5));
  header.sequence = static_cast<std::uint32_t>(random.below(std::uint64_t{1} << 32));
  header.generation = random.below(~std::uint64_t{0});
  header.signature.sequence = random.below(1000);
  header.signature.count = random.below(std::uint64_t{1} << 40);
  header.signature.root = static_cast<std::int32_t>(random.below(9));
  header.signature.kind = muster::collective::allreduce;
  header.signature.type = muster::dtype::float32;
  header.signature.op = muster::operation::sum;
  header.signature.algorithm = muster::algorithm::ring;
  switch (header.kind) {
    case frame_kind::message:
    case frame_kind::data:
      header.total = random.below(2) * random.below(largest_message);
      break;
    case frame_kind::rts:
      header.total = random.below(largest_message);
      break;
    default:
      if (header.kind >= frame_kind::beat) header.total = random.below(largest_control_payload + 1);
      break;
  }
  if (header.bytes() > 0) header.lead = static_cast<std::uint8_t>(random.below(64));
  if (header.bytes() > 0 && random.below(2) == 0) header.flags = frame::has_checksum;
  return header;
}

// Exchanges the messages of both sides until neither has more to send.
void exchange_messages(handshake& first, handshake& second) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [sender, receiver] : {std::pair(&first, &second), std::pair(&second, &first)}) {
      while (sender->current_state() == handshake::state::sending &&
             receiver->current_state() == handshake::state::reading) {
        const auto part = sender->output().first(std::min<std::size_t>(sender->output().size(), 7));
        receiver->received(part);
        sender->sent(part.size());
        moved = true;
      }
    }
  }
}

job_secret secret(std::string_view token) { return job_secret(std::span(&token, 1)); }

}  // namespace

TEST_CASE("a frame is read as it was written, and not when any bit of it differs") {
  muster::random_stream random(20261121, 2);
  for (int i = 0; i < 500; ++i) {
    const frame sent = random_frame(random);
    auto header = encode(sent);
    frame decoded;
    REQUIRE(decode(header, decoded) == nullptr);
    CHECK(decoded == sent);
    const auto bit = random.below(8 * frame_bytes);
    header[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    CHECK(decode(header, decoded) != nullptr);
  }
}

TEST_CASE("any bytes whatever are a frame within the limits, or none") {
  muster::random_stream random(20261121, 3);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::uint8_t> data(random.below(200));
    for (auto& b : data) b = static_cast<std::uint8_t>(random.below(256));
    accepted += fuzz::check_frame(data) ? 1 : 0;
    // The same with a valid checksum: then only the limits can reject the header.
    auto header = encode(random_frame(random));
    const auto position = random.below(frame_bytes - 12);
    header[position < 8 ? position : position + 4] = static_cast<std::byte>(random.below(256));
    std::memset(header.data() + 8, 0, 4);
    const std::uint32_t checksum = muster::crc32c(header);
    std::memcpy(header.data() + 8, &checksum, sizeof checksum);
    const auto* const first = reinterpret_cast<const std::uint8_t*>(header.data());
    accepted += fuzz::check_frame({first, first + header.size()}) ? 1 : 0;
  }
  CHECK(accepted > 1000);
}

TEST_CASE("a notice is read as it was written") {
  muster::control_message sent;
  sent.type = muster::control_message::kind::abort;
  sent.status = 3;
  sent.signature.sequence = 17;
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, sizeof sent.text - 1}) {
    sent.set_text(std::string(length, 'x'));
    const auto payload = encode_control_message(sent);
    muster::control_message decoded;
    REQUIRE(decode_control_message(payload, decoded));
    CHECK(decoded.type == sent.type);
    CHECK(decoded.status == 3);
    CHECK(decoded.signature == sent.signature);
    CHECK(std::string(decoded.text) == std::string(length, 'x'));
    CHECK_FALSE(decode_control_message(payload.first(offsetof(muster::control_message, text) - 1), decoded));
    const std::vector<std::byte> longer(sizeof sent, std::byte{1});
    CHECK_FALSE(decode_control_message(longer, decoded));
  }
}

TEST_CASE("two peers that know the secret connect, and know each other's rank") {
  for (const bool is_accepted : {true, false}) {
    auto caller = handshake::connect(secret("s"), {3, 5, 1});
    auto callee = handshake::answer(secret("s"), 5);
    exchange_messages(caller, callee);
    REQUIRE(callee.current_state() == handshake::state::asking);
    CHECK(callee.peer() == introduction{3, 5, 1});
    if (is_accepted) {
      callee.accept();
    } else {
      callee.refuse();
    }
    exchange_messages(caller, callee);
    const auto expected = is_accepted ? handshake::state::done : handshake::state::refused;
    CHECK(caller.current_state() == expected);
    CHECK(callee.current_state() == expected);
  }
}

TEST_CASE("a peer that does not know the secret, or asks for another rank, is refused") {
  auto caller = handshake::connect(secret("right"), {3, 5, 0});
  auto callee = handshake::answer(secret("wrong"), 5);
  exchange_messages(caller, callee);
  CHECK(callee.current_state() == handshake::state::stranger);

  auto wrong_caller = handshake::connect(secret("s"), {3, 4, 0});
  auto second_callee = handshake::answer(secret("s"), 5);
  exchange_messages(wrong_caller, second_callee);
  CHECK(second_callee.current_state() == handshake::state::stranger);
}

TEST_CASE("a peer whose proofs are of another kind, or of another version, is named to the connecting side") {
  for (const std::string& protocol : {std::string("muster plain 2\n", 16), std::string("muster ranks 9\n", 16)}) {
    INFO(protocol);
    auto caller = handshake::connect(secret("s"), {3, 5, 0});
    std::vector<std::byte> hello(caller.output().begin(), caller.output().end());
    caller.sent(hello.size());
    auto callee = handshake::answer(secret("s"), 5);
    std::memcpy(hello.data(), protocol.data(), protocol.size());
    callee.received(hello);
    REQUIRE(callee.current_state() == handshake::state::sending);
    std::vector<std::byte> notice(callee.output().begin(), callee.output().end());
    callee.sent(notice.size());
    CHECK(callee.current_state() == handshake::state::stranger);
    CHECK(std::string(reinterpret_cast<const char*>(notice.data()), 16) == std::string("muster ranks 2\n", 16));

    REQUIRE(notice.size() == caller.expected_bytes());
    std::memcpy(notice.data(), protocol.data(), protocol.size());  // as a server with the other protocol replies
    caller.received(notice);
    CHECK(caller.current_state() == handshake::state::stranger);
    CHECK_THAT(caller.protocol_difference(), contains(protocol[7] == 'p' ? "OpenSSL" : "versions"));
  }
}

// Changes a bit in one message: the receiver must not continue.
TEST_CASE("a handshake that was touched on its way comes to nothing") {
  muster::random_stream random(20261121, 4);
  for (int i = 0; i < 400; ++i) {
    auto caller = handshake::connect(secret("s"), {3, 5, 0});
    auto callee = handshake::answer(secret("s"), 5);
    const auto changed_step = random.below(4);
    for (std::uint64_t step = 0; step < 4; ++step) {
      auto& sender = step % 2 == 0 ? caller : callee;
      auto& receiver = step % 2 == 0 ? callee : caller;
      if (callee.current_state() == handshake::state::asking) callee.accept();
      if (sender.current_state() != handshake::state::sending) break;
      std::vector<std::byte> message(sender.output().begin(), sender.output().end());
      sender.sent(message.size());
      if (step == changed_step) {
        const auto bit = random.below(8 * message.size());
        message[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      }
      receiver.received(message);
    }
    CHECK(caller.current_state() != handshake::state::done);
  }
}

TEST_CASE("parts of a secret do not run into each other") {
  const std::array<std::string_view, 2> first = {"ab", "c"};
  const std::array<std::string_view, 2> second = {"a", "bc"};
  const job_secret a(first);
  const job_secret b(second);
  CHECK_FALSE(std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin()));
}
