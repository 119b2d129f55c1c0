// Peers of a tcp mesh that leave, violate the protocol or stop sending.
#include <optional>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include "catch.hpp"
#include "meshes.hpp"

using namespace meshes;  // NOLINT: this is about nothing else

// Both groups are checked with the same deadline, in the order in which the rank left them.
TEST_CASE("a rank that leaves a group is reported gone where others need it, and not where it did all", "[tcp]") {
  run(test::tcp_job::busy_plan(), 2, [](muster::group& world, tcp::tcp_mesh&) {
    std::optional<muster::group> finished(world.duplicate()), needed(world.duplicate());
    muster::barrier(*finished);
    if (world.rank() == 1) {
      finished.reset();
      needed.reset();
    } else {
      std::string text;
      try {
        muster::barrier(*needed);
      } catch (const muster::peer_failure& failure) {
        text = failure.what();
      }
      require(text.find("left before it finished") != std::string::npos, "rank 1 is gone from the other: " + text);
      for (muster::control_message message; finished->transport().poll(message);)
        require(message.type != muster::control_message::kind::peer_ended,
                std::string("it is not gone: ") + message.text);
    }
    muster::barrier(world);
  });
}

TEST_CASE("a peer that breaks the rules is lost, and the notice says what was seen", "[tcp]") {
  struct violation {
    const char* text;
    std::function<void(impostor&)> action;
  };
  const std::vector<violation> violations = {
      {"its connection ended", [](impostor& peer) { peer.data = {}; }},
      {"its connection", [](impostor& peer) { peer.control = {}; }},
      {"a malformed frame",
       [](impostor& peer) {
         const std::vector<std::byte> zeroes(1000);
         test::write_exactly(peer.data, zeroes, impostor::deadline());
       }},
      {"a malformed frame",
       [](impostor& peer) {
         const std::vector<std::byte> zeroes(1000);
         test::write_exactly(peer.control, zeroes, impostor::deadline());
       }},
      {"in the middle of a message",
       [](impostor& peer) {
         const auto header = tcp::encode(message_of(100));
         test::write_exactly(peer.data, std::span(header).first(40), impostor::deadline());
         peer.data = {};
       }},
      {"in the middle of a message",
       [](impostor& peer) {
         const std::vector<std::byte> some(99);
         peer.send(peer.data, message_of(100), some);
         peer.data = {};
       }},
      {"out of order",
       [](impostor& peer) {
         auto head = message_of(0);
         head.sequence = 1;
         peer.send(peer.data, head);
       }},
      {"checksum of a payload",
       [](impostor& peer) {
         auto head = message_of(60);
         head.flags = tcp::frame::has_checksum;
         const std::vector<std::byte> some(64);
         peer.send(peer.data, head, some);
       }},
      {"without a clear-to-send",
       [](impostor& peer) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::data;
         peer.send(peer.data, head);
       }},
      {"not announced",
       [](impostor& peer) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::cts;
         peer.send(peer.data, head);
       }},
      {"more credit",
       [](impostor& peer) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::credit;
         head.set_number(1);
         peer.send(peer.data, head);
       }},
      {"more than it has credit for",
       [](impostor& peer) {
         auto head = message_of(tcp::largest_message);  // no receive is posted for this tag
         head.tag = 8;
         peer.send(peer.data, head);
       }},
      {"more than it has credit for",
       [](impostor& peer) {
         auto head = message_of(1 << 20);
         const std::vector<std::byte> some(1 << 20);
         try {
           for (head.tag = 0; head.sequence < 4; ++head.sequence) peer.send(peer.data, head, some);
         } catch (const tcp::socket_error&) {  // the peer is lost before it has sent the last message
         }
       }},
      {"another size than its request-to-send",
       [](impostor& peer) {
         auto head = message_of(100000);
         head.kind = tcp::frame_kind::rts;
         peer.send(peer.data, head);
         peer.read_clear_to_send();
         head = message_of(200000);  // more than was announced
         head.kind = tcp::frame_kind::data;
         head.sequence = 1;
         head.set_number(0);
         peer.send(peer.data, head);
       }},
      {"control frame on a data stream",
       [](impostor& peer) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::beat;
         peer.send(peer.data, head);
       }},
  };
  for (const auto& violation : violations) {
    const std::string text = end_after(violation.action);
    INFO(text);
    CHECK_THAT(text, contains(violation.text));
    CHECK_THAT(text, contains("rank 1 is gone"));
  }
}

TEST_CASE("a message that a lost rank had only begun to send is dropped, one that it had sent arrives", "[tcp]") {
  const bool waits = GENERATE(false, true);  // true: a receive is posted when the message begins
  auto unfinished = message_of(100);
  unfinished.tag = 9;
  unfinished.sequence = 1;
  std::size_t bytes = 0;
  SECTION("cut off") { bytes = 40; }
  SECTION("cut off where a line ends") { bytes = 64; }
  SECTION("only announced") { unfinished.kind = tcp::frame_kind::rts; }
  const odd_pair pair;
  auto& transport = *pair.transport;
  parcel awaited(100, 0), first(100, 0), second(100, 0), own(100, 2);
  transport.receive(awaited.with(1, 7).r);  // a posted receive makes the transport read the data connection
  const auto receive = [&] {
    for (parcel* const request : {&first, &second}) transport.receive(request->with(muster::any_source, 9).r);
  };
  if (waits) receive();
  auto complete = message_of(64);
  complete.tag = 9;
  const std::vector<std::byte> bytes_to_send(64, std::byte{1});
  pair.peer->send(pair.peer->data, complete, bytes_to_send);
  pair.peer->send(pair.peer->data, unfinished, std::span(bytes_to_send).first(bytes));
  pair.peer->data = {};
  (void)pair.wait_for_end(awaited.r);
  if (!waits) receive();
  transport.send(own.with(0, 9).r);
  CHECK(transport.test(first.r));
  CHECK((first.r.source == 1 && first.r.received == 64));
  CHECK(transport.test(second.r));
  if (waits) {
    CHECK((second.r.source == 1 && second.r.received == 0));
    transport.receive(second.with(muster::any_source, 9).r);
    CHECK(transport.test(second.r));
  }
  CHECK((second.r.source == 0 && second.is_all(2)));
}

TEST_CASE("a peer whose connections stand and that is silent is lost for its silence", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.beat = muster::seconds(0.02);
  plan.missed_heartbeats = 20;
  plan.connect_timeout = muster::seconds(4);  // the limit is half of it for a peer on this host
  CHECK_THAT(end_after([](impostor&) {}, plan), contains("no heartbeat for 2000 ms"));
}

TEST_CASE("a peer that takes nothing for long is waited for as long as the call may take", "[tcp]") {
  // The peer's system reports that its buffer is full. TCP_USER_TIMEOUT would count that as silence.
  auto plan = test::tcp_job::busy_plan();
  plan.connect_timeout = muster::seconds(2);
  constexpr std::size_t count = std::size_t{16} << 20;
  run(plan, 2, [](muster::group& world, tcp::tcp_mesh&) {
    std::vector<float> values(count, world.rank() == 0 ? 1.0f : 0.0f);
    if (world.rank() == 1) std::this_thread::sleep_for(4s);
    muster::broadcast(world, std::span(values), 0, {.algorithm = muster::algorithm::tree, .timeout = patience});
    require(values.front() == 1.0f && values.back() == 1.0f, "the broadcast is not the root's");
  });
}
