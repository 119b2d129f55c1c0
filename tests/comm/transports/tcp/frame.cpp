// What goes over a connection: frames of any bytes, handshakes.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <muster/core/crc32c.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"
#include "comm/net/handshake.hpp"
#include "fuzz/frame.hpp"

using namespace muster::detail;  // NOLINT: this is about nothing else

namespace {

frame random_frame(muster::random_stream& random) {
  constexpr frame_kind kinds[] = {
      frame_kind::message, frame_kind::rts,     frame_kind::cts,  frame_kind::data,
      frame_kind::credit,  frame_kind::goodbye, frame_kind::beat, frame_kind::control_message};
  frame made;
  made.kind = kinds[random.below(std::size(kinds))];
  made.tag = static_cast<std::uint32_t>(random.below(5));
  made.sequence = static_cast<std::uint32_t>(random.below(std::uint64_t{1} << 32));
  made.generation = random.below(~std::uint64_t{0});
  made.signature.sequence = random.below(1000);
  made.signature.count = random.below(std::uint64_t{1} << 40);
  made.signature.root = static_cast<std::int32_t>(random.below(9));
  made.signature.kind = muster::collective::allreduce;
  made.signature.type = muster::dtype::float32;
  made.signature.op = muster::operation::sum;
  made.signature.algorithm = muster::algorithm::ring;
  switch (made.kind) {
    case frame_kind::message:
    case frame_kind::data:
      made.total = random.below(2) * random.below(largest_message);
      break;
    case frame_kind::rts:
      made.total = random.below(largest_message);
      break;
    default:
      if (made.kind >= frame_kind::beat) made.total = random.below(largest_control_payload + 1);
      break;
  }
  if (made.bytes() > 0) made.lead = static_cast<std::uint8_t>(random.below(64));
  if (made.bytes() > 0 && random.below(2) == 0) made.flags = frame::has_checksum;
  return made;
}

// Carries what each side has to say to the other until both are silent.
void talk(handshake& one, handshake& other) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [from, to] : {std::pair(&one, &other), std::pair(&other, &one)}) {
      while (from->now() == handshake::state::sending && to->now() == handshake::state::reading) {
        const auto part = from->output().first(std::min<std::size_t>(from->output().size(), 7));
        to->received(part);
        from->sent(part.size());
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
    frame got;
    REQUIRE(decode(header, got) == nullptr);
    CHECK(got == sent);
    const auto bit = random.below(8 * frame_bytes);
    header[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    CHECK(decode(header, got) != nullptr);
  }
}

TEST_CASE("any bytes whatever are a frame within the limits, or none") {
  muster::random_stream random(20261121, 3);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::uint8_t> data(random.below(200));
    for (auto& b : data) b = static_cast<std::uint8_t>(random.below(256));
    accepted += fuzz::check_frame(data) ? 1 : 0;
    // The same under a checksum that fits: then the limits alone speak.
    auto header = encode(random_frame(random));
    const auto at = random.below(frame_bytes - 12);
    header[at < 8 ? at : at + 4] = static_cast<std::byte>(random.below(256));
    std::memset(header.data() + 8, 0, 4);
    const std::uint32_t sum = muster::crc32c(header);
    std::memcpy(header.data() + 8, &sum, sizeof sum);
    const auto* const first = reinterpret_cast<const std::uint8_t*>(header.data());
    accepted += fuzz::check_frame({first, first + header.size()}) ? 1 : 0;
  }
  CHECK(accepted > 1000);
}

TEST_CASE("a notice is read as it was written") {
  muster::control_message sent;
  sent.what = muster::control_message::kind::abort;
  sent.status = 3;
  sent.signature.sequence = 17;
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, sizeof sent.text - 1}) {
    sent.set_text(std::string(length, 'x'));
    const auto payload = encode_notice(sent);
    muster::control_message got;
    REQUIRE(decode_notice(payload, got));
    CHECK(got.what == sent.what);
    CHECK(got.status == 3);
    CHECK(got.signature == sent.signature);
    CHECK(std::string(got.text) == std::string(length, 'x'));
    CHECK_FALSE(decode_notice(payload.first(offsetof(muster::control_message, text) - 1), got));
    const std::vector<std::byte> longer(sizeof sent, std::byte{1});
    CHECK_FALSE(decode_notice(longer, got));
  }
}

TEST_CASE("two peers that know the secret connect, and know each other's rank") {
  for (const bool wanted : {true, false}) {
    auto caller = handshake::connect(secret("s"), {3, 5, 1});
    auto callee = handshake::answer(secret("s"), 5);
    talk(caller, callee);
    REQUIRE(callee.now() == handshake::state::asking);
    CHECK(callee.other() == introduction{3, 5, 1});
    if (wanted) {
      callee.accept();
    } else {
      callee.refuse();
    }
    talk(caller, callee);
    const auto expected = wanted ? handshake::state::done : handshake::state::refused;
    CHECK(caller.now() == expected);
    CHECK(callee.now() == expected);
  }
}

TEST_CASE("a peer that does not know the secret, or asks for another rank, is refused") {
  auto caller = handshake::connect(secret("right"), {3, 5, 0});
  auto callee = handshake::answer(secret("wrong"), 5);
  talk(caller, callee);
  CHECK(callee.now() == handshake::state::stranger);

  auto lost = handshake::connect(secret("s"), {3, 4, 0});
  auto other = handshake::answer(secret("s"), 5);
  talk(lost, other);
  CHECK(other.now() == handshake::state::stranger);
}

// Each message of either side with one bit changed: the other side does not go on.
TEST_CASE("a handshake that was touched on its way comes to nothing") {
  muster::random_stream random(20261121, 4);
  for (int i = 0; i < 400; ++i) {
    auto caller = handshake::connect(secret("s"), {3, 5, 0});
    auto callee = handshake::answer(secret("s"), 5);
    const auto broken = random.below(4);
    for (std::uint64_t step = 0; step < 4; ++step) {
      auto& from = step % 2 == 0 ? caller : callee;
      auto& to = step % 2 == 0 ? callee : caller;
      if (callee.now() == handshake::state::asking) callee.accept();
      if (from.now() != handshake::state::sending) break;
      std::vector<std::byte> message(from.output().begin(), from.output().end());
      from.sent(message.size());
      if (step == broken) {
        const auto bit = random.below(8 * message.size());
        message[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      }
      to.received(message);
    }
    CHECK(caller.now() != handshake::state::done);
  }
}

TEST_CASE("parts of a secret do not run into each other") {
  const std::array<std::string_view, 2> one = {"ab", "c"};
  const std::array<std::string_view, 2> other = {"a", "bc"};
  const job_secret a(one);
  const job_secret b(other);
  CHECK_FALSE(std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin()));
}
