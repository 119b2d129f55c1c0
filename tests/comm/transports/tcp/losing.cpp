// Peers of a tcp mesh that leave, break the rules or fall silent.
#include <optional>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include "catch.hpp"
#include "meshes.hpp"

using namespace meshes;  // NOLINT: this is about nothing else

// Both groups are judged by the same clock, in the order in which they were left.
TEST_CASE("a rank that leaves a group is reported gone where others need it, and not where it did all", "[tcp]") {
  run(test::tcp_job::busy_plan(), 2, [](muster::group& world, tcp::tcp_mesh&) {
    std::optional<muster::group> finished(world.duplicate()), needed(world.duplicate());
    muster::barrier(*finished);
    if (world.rank() == 1) {
      finished.reset();
      needed.reset();
    } else {
      std::string told;
      try {
        muster::barrier(*needed);
      } catch (const muster::peer_failure& gone) {
        told = gone.what();
      }
      require(told.find("left before it finished") != std::string::npos, "rank 1 is gone from the other: " + told);
      for (muster::control_message message; finished->transport().poll(message);)
        require(message.what != muster::control_message::kind::gone, std::string("it is not gone: ") + message.text);
    }
    muster::barrier(world);
  });
}

TEST_CASE("a peer that breaks the rules is lost, and the notice says what was seen", "[tcp]") {
  struct way {
    const char* seen;
    std::function<void(impostor&)> deed;
  };
  const std::vector<way> ways = {
      {"its connection ended", [](impostor& other) { other.stream = {}; }},
      {"its connection", [](impostor& other) { other.control = {}; }},
      {"a malformed frame",
       [](impostor& other) {
         const std::vector<std::byte> zeroes(1000);
         test::write_exactly(other.stream, zeroes, impostor::until());
       }},
      {"a malformed frame",
       [](impostor& other) {
         const std::vector<std::byte> zeroes(1000);
         test::write_exactly(other.control, zeroes, impostor::until());
       }},
      {"in the middle of a message",
       [](impostor& other) {
         const auto header = tcp::encode(message_of(100));
         test::write_exactly(other.stream, std::span(header).first(40), impostor::until());
         other.stream = {};
       }},
      {"in the middle of a message",
       [](impostor& other) {
         const std::vector<std::byte> some(99);
         other.send(other.stream, message_of(100), some);
         other.stream = {};
       }},
      {"out of order",
       [](impostor& other) {
         auto head = message_of(0);
         head.sequence = 1;
         other.send(other.stream, head);
       }},
      {"checksum of a payload",
       [](impostor& other) {
         auto head = message_of(60);
         head.flags = tcp::frame::has_checksum;
         const std::vector<std::byte> some(64);
         other.send(other.stream, head, some);
       }},
      {"without a clear-to-send",
       [](impostor& other) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::data;
         other.send(other.stream, head);
       }},
      {"not announced",
       [](impostor& other) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::cts;
         other.send(other.stream, head);
       }},
      {"more credit",
       [](impostor& other) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::credit;
         head.set_number(1);
         other.send(other.stream, head);
       }},
      {"more than it has credit for",
       [](impostor& other) {
         auto head = message_of(tcp::largest_message);  // no receive waits for a message with this tag
         head.tag = 8;
         other.send(other.stream, head);
       }},
      {"more than it has credit for",
       [](impostor& other) {
         auto head = message_of(1 << 20);
         const std::vector<std::byte> some(1 << 20);
         try {
           for (head.tag = 0; head.sequence < 4; ++head.sequence) other.send(other.stream, head, some);
         } catch (const tcp::socket_error&) {  // it is lost before the last has gone
         }
       }},
      {"another size than its request-to-send",
       [](impostor& other) {
         auto head = message_of(100000);
         head.kind = tcp::frame_kind::rts;
         other.send(other.stream, head);
         other.hear_clear();
         head = message_of(200000);  // more than was announced
         head.kind = tcp::frame_kind::data;
         head.sequence = 1;
         head.set_number(0);
         other.send(other.stream, head);
       }},
      {"control frame on a data stream",
       [](impostor& other) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::beat;
         other.send(other.stream, head);
       }},
  };
  for (const auto& way : ways) {
    const std::string text = heard_after(way.deed);
    INFO(text);
    CHECK_THAT(text, contains(way.seen));
    CHECK_THAT(text, contains("rank 1 is gone"));
  }
}

TEST_CASE("a message that a lost rank had only begun to send is dropped, one that it had sent arrives", "[tcp]") {
  const bool waits = GENERATE(false, true);  // a receive, when it begins
  auto begun = message_of(100);
  begun.tag = 9;
  begun.sequence = 1;
  std::size_t bytes = 0;
  SECTION("cut off") { bytes = 40; }
  SECTION("cut off where a line ends") { bytes = 64; }
  SECTION("only announced") { begun.kind = tcp::frame_kind::rts; }
  const odd_pair pair;
  auto& mine = *pair.mine;
  parcel awaited(100, 0), first(100, 0), second(100, 0), own(100, 2);
  mine.receive(awaited.with(1, 7).r);  // so that the stream is read
  const auto receive = [&] {
    for (parcel* const one : {&first, &second}) mine.receive(one->with(muster::any_source, 9).r);
  };
  if (waits) receive();
  auto whole = message_of(64);
  whole.tag = 9;
  const std::vector<std::byte> some(64, std::byte{1});
  pair.other->send(pair.other->stream, whole, some);
  pair.other->send(pair.other->stream, begun, std::span(some).first(bytes));
  pair.other->stream = {};
  (void)pair.hear_end(awaited.r);
  if (!waits) receive();
  mine.send(own.with(0, 9).r);
  CHECK(mine.test(first.r));
  CHECK((first.r.source == 1 && first.r.received == 64));
  CHECK(mine.test(second.r));
  if (waits) {
    CHECK((second.r.source == 1 && second.r.received == 0));
    mine.receive(second.with(muster::any_source, 9).r);
    CHECK(mine.test(second.r));
  }
  CHECK((second.r.source == 0 && second.is_all(2)));
}

TEST_CASE("a peer whose connections stand and that is silent is lost for its silence", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.beat = muster::seconds(0.02);
  plan.missed = 20;
  plan.patience = muster::seconds(4);  // half of it for one of this host, whose end would show
  CHECK_THAT(heard_after([](impostor&) {}, plan), contains("no heartbeat for 2000 ms"));
}

TEST_CASE("a peer that takes nothing for long is waited for as long as the call may take", "[tcp]") {
  // Its system has no more room and says so: TCP_USER_TIMEOUT would count that as silence.
  auto plan = test::tcp_job::busy_plan();
  plan.patience = muster::seconds(2);
  constexpr std::size_t count = std::size_t{16} << 20;
  run(plan, 2, [](muster::group& world, tcp::tcp_mesh&) {
    std::vector<float> values(count, world.rank() == 0 ? 1.0f : 0.0f);
    if (world.rank() == 1) std::this_thread::sleep_for(4s);
    muster::broadcast(world, std::span(values), 0, {.algorithm = muster::algorithm::tree, .timeout = patience});
    require(values.front() == 1.0f && values.back() == 1.0f, "the broadcast is not the root's");
  });
}
