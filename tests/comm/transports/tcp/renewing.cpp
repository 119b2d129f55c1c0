// Connections of a tcp mesh that are made again after they broke.
#include <muster/comm/collectives/barrier.hpp>
#include "catch.hpp"
#include "meshes.hpp"

using namespace meshes;  // NOLINT: this is about nothing else

TEST_CASE("a group that renews a rank whose connections broke talks to it again, and others have lost it", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  constexpr int times = 3;
  std::atomic<int> arrived{0};
  const auto meet = [&](int count) {
    ++arrived;
    const auto deadline = muster::deadline_after(patience);
    while (arrived < 2 * count) {
      require(muster::clock::now() < deadline, "the other rank arrives");
      std::this_thread::sleep_for(1ms);
    }
  };
  run(plan, 2, [&](muster::group& world, tcp::tcp_mesh&) {
    auto renewing = world.duplicate();
    auto losing = world.duplicate();
    auto& transport = renewing.transport();
    const int peer = 1 - world.rank();
    int met = 0;
    for (int round = 1; round <= times; ++round) {
      parcel before(round == 1 ? 1000 : 100'000, 1), reading(10, 0);  // these two requests do not match
      transport.receive(reading.with(muster::any_source, 9).r);
      transport.send(before.with(peer, 8).r);
      meet(++met);
      if (world.rank() == 0) break_connections();
      meet(++met);
      const auto deadline = muster::deadline_after(patience);
      for (muster::control_message message;
           !transport.poll(message) || message.type != muster::control_message::kind::peer_ended;) {
        require(muster::clock::now() < deadline, "the break is seen");
        (void)transport.test(before.r);
        transport.pause(muster::deadline_after(0.01s));
      }
      // A slow rank, whose peer has sent again before that rank detects the break.
      if (world.rank() == round % 2) std::this_thread::sleep_for(100ms);
      require(transport.reconnect(peer, deadline), "it is renewed");
      parcel sent(200'000, static_cast<std::uint8_t>(round)), received(1'000'000, 0);
      transport.receive(received.with(muster::any_source, 8).r);
      transport.send(sent.with(peer, 8).r);
      received.finish(transport);
      sent.finish(transport);
      require(received.r.received == 200'000 && received.data.front() == round, "it gets what was sent after it");
      meet(++met);
    }
    for (auto* const lost : {&losing, &world}) {
      bool failed = false;
      try {
        muster::barrier(*lost);
      } catch (const muster::peer_failure&) {
        failed = true;
      }
      require(failed, "a group that did not renew it has lost it");
    }
  });
}

TEST_CASE("a rank that has ended is not renewed, which is seen before the time for it is over", "[tcp]") {
  const odd_pair pair;
  parcel awaited(100, 0);
  pair.transport->receive(awaited.with(1, 7).r);
  pair.peer->data = {};
  pair.peer->control = {};
  (void)pair.wait_for_end(awaited.r);
  CHECK(pair.transport->reconnect(1, muster::deadline_after(10 * patience)));
  (void)pair.wait_for_end(awaited.r);
  CHECK_FALSE(pair.transport->reconnect(1, muster::deadline_after(10 * patience)));
}
