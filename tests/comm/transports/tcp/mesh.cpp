// The features that only the tcp transport has: its settings, groups, and messages beyond the credit.
#include <deque>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include "catch.hpp"
#include "comm/oracle.hpp"
#include "meshes.hpp"

using namespace meshes;  // NOLINT: this is about nothing else

TEST_CASE("every plan of connections gives the results of the oracle", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  SECTION("lazy") { plan.lazy = true; }
  SECTION("checksums") { plan.limits.checksum = true; }
  SECTION("small windows") { plan.limits.window = 5000; }
  SECTION("checksums, small windows, lazy") {
    plan.limits.checksum = true;
    plan.limits.window = 5000;
    plan.lazy = true;
  }
  for (const int ranks : {2, 4, 5}) {
    run(plan, ranks, [](muster::group& world, tcp::tcp_mesh&) {
      test::check_cases(test::cases_of_run(150), world);
      auto half = world.split(world.rank() % 2);
      require(muster::allreduce(half, 1, muster::sum) == half.size(), "a group of some");
    });
  }
}

// Regression: the connection kept a pointer to the message after the message was freed.
TEST_CASE("a group is closed after a message of its that came before its receive", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.window = 4096;
  run(plan, 2, [](muster::group& world, tcp::tcp_mesh&) {
    for (int round = 0; round < 20; ++round) {
      auto duplicate = world.split(0);
      std::vector<int> values(8000, world.rank() == 0 ? round : -1);
      if (world.rank() == 1) muster::barrier(world);  // messages that it reads before are stored aside
      muster::broadcast(duplicate, std::span(values), 0);
      if (world.rank() == 0) muster::barrier(world);
      require(std::count(values.begin(), values.end(), round) == 8000, "the root's values");
    }
  });
}

// More tagged messages of all sizes than there is credit for, and no receive for them: collectives must still complete.
TEST_CASE("collectives do not wait behind tagged messages that have no receive", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.eager = 1000;
  plan.limits.credit = 8000;
  run(plan, 3, [](muster::group& world, tcp::tcp_mesh&) {
    auto& transport = world.transport();
    constexpr std::size_t count = 60;
    const auto size_of = [](std::size_t i) { return i * i * 37 % 30000; };
    std::vector<std::vector<std::uint8_t>> data(count);
    std::vector<muster::request> sent(count);
    const int next = (world.rank() + 1) % world.size();
    const int previous = (world.rank() + 2) % world.size();
    for (std::size_t i = 0; i < count; ++i) {
      data[i].assign(size_of(i), static_cast<std::uint8_t>(i));
      sent[i].data = reinterpret_cast<std::byte*>(data[i].data());
      sent[i].bytes = data[i].size();
      sent[i].peer = next;
      sent[i].tag = 1 + static_cast<std::uint32_t>(i % 3);
      transport.send(sent[i]);
    }
    std::vector<double> values(30000, 1.0);
    for (int i = 0; i < 5; ++i) muster::allreduce(world, values, muster::sum);
    require(values[29999] == 243.0, "the sum");
    // Receives tag by tag, from the last, so that earlier messages are stored aside.
    for (std::uint32_t tag = 3; tag >= 1; --tag) {
      for (std::size_t i = tag - 1; i < count; i += 3) {
        std::vector<std::uint8_t> received(30000);
        muster::request r;
        r.data = reinterpret_cast<std::byte*>(received.data());
        r.bytes = received.size();
        r.peer = i % 2 == 0 ? previous : muster::any_source;
        r.tag = tag;
        transport.receive(r);
        const auto deadline = muster::deadline_after(patience);
        while (!transport.test(r)) {
          require(muster::clock::now() < deadline, "the message arrives");
          transport.pause(muster::deadline_after(0.01s));
        }
        require(r.received == size_of(i) && r.source == previous, "in its order");
        for (std::size_t k = 0; k < r.received; ++k)
          require(received[k] == static_cast<std::uint8_t>(i), "its content");
      }
    }
    for (auto& r : sent) {
      const auto deadline = muster::deadline_after(patience);
      while (!transport.test(r)) require(muster::clock::now() < deadline, "the send completes");
    }
    muster::barrier(world);
  });
}

// A rank waits for a later message: it stores the eager messages of its peer aside, and the other messages stay with
// the peer.
TEST_CASE("what is put aside of collectives that a rank has not come to is limited", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.credit = 400'000;
  const std::size_t bytes = GENERATE(0, 1000, 90'000, 1'000'000);
  constexpr std::size_t count = 2000;
  const std::size_t messages = bytes < 10'000 ? count : 40;
  flag later_has_arrived, counted;
  run(plan, 2, [&](muster::group& world, tcp::tcp_mesh&) {
    auto& transport = world.transport();
    std::deque<parcel> parcels;
    for (std::size_t i = 0; i < messages; ++i)
      parcels.emplace_back(bytes, world.rank() == 0 ? static_cast<std::uint8_t>(i) : 0, i).with(1 - world.rank(), 0);
    parcel later(8, 1);
    later.with(1 - world.rank(), 5);
    if (world.rank() == 0) {
      for (auto& message : parcels) transport.send(message.r);
      transport.send(later.r);
      later.finish(transport);
      later_has_arrived.wait();
      const auto sent = static_cast<std::size_t>(
          std::count_if(parcels.begin(), parcels.end(), [&](parcel& message) { return transport.test(message.r); }));
      counted.raise();
      require(sent * (bytes + 256) <= 400'000, "no more than the credit is sent: " + std::to_string(sent));
      for (auto& message : parcels) message.finish(transport);
    } else {
      transport.receive(later.r);
      later.finish(transport);
      later_has_arrived.raise();
      counted.wait();
      for (auto& message : parcels) transport.receive(message.r);
      for (std::size_t i = 0; i < messages; ++i) {
        parcels[i].finish(transport);
        require(parcels[i].is_all(static_cast<std::uint8_t>(i)), "message " + std::to_string(i) + " in its order");
      }
    }
    muster::barrier(world);
  });
}

// The credit for unread messages becomes available again: an eager message completes at its sender even without a
// receive.
TEST_CASE("a group that is closed gives back the credit of what it had not taken", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.credit = 40'000;
  flag done;
  run(plan, 2, [&](muster::group& world, tcp::tcp_mesh&) {
    auto& transport = world.transport();
    parcel last(20'000, 3);
    last.with(1 - world.rank(), 5);
    {
      auto twin = world.duplicate();
      if (world.rank() == 0) {
        parcel unread(30'000, 2);
        twin.transport().send(unread.with(1, 5).r);
        unread.finish(twin.transport());
      }
      muster::barrier(world);  // sent after the message, which is therefore stored aside
    }
    for (int i = 0; i < 2; ++i) muster::barrier(world);  // a message in each direction
    if (world.rank() == 0) {
      transport.send(last.r);
      last.finish(transport);
      done.raise();
    } else {
      done.wait();
      transport.receive(last.r);
      last.finish(transport);
      require(last.is_all(3), "its content");
    }
    muster::barrier(world);
  });
}

TEST_CASE("a large message for a group that its receiver has closed ends for its sender", "[tcp]") {
  const bool comes_late = GENERATE(false, true);
  flag closed;
  run(test::tcp_job::busy_plan(), 2, [&](muster::group& world, tcp::tcp_mesh&) {
    auto twin = std::make_unique<muster::group>(world.duplicate());
    if (world.rank() == 0) {
      parcel large(10'000'000, 1, 0);
      if (comes_late) closed.wait();
      twin->transport().send(large.with(1, 0).r);
      (void)twin->transport().test(large.r);
      muster::barrier(world);
      large.finish(twin->transport());
    } else if (comes_late) {
      twin.reset();
      closed.raise();
      muster::barrier(world);
    } else {
      muster::barrier(world);
      twin.reset();
    }
    muster::barrier(world);
  });
}

TEST_CASE("groups that were closed long ago are forgotten", "[tcp]") {
  tcp::matcher messages(1, {});
  constexpr std::uint64_t many = 5000;
  for (std::uint64_t generation = 0; generation < many; ++generation) {
    tcp::tcp_channel group(generation, {0}, 0, 1);
    messages.open(group);
    messages.close(group);
  }
  CHECK(messages.is_closed(many - 1));
  CHECK(messages.is_closed(many - 1000));
  CHECK_FALSE(messages.is_closed(0));
}

TEST_CASE("a send that is taken back in its middle ends for its receiver", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.credit = 100'000'000;
  run(plan, 2, [](muster::group& world, tcp::tcp_mesh&) {
    auto& transport = world.transport();
    const auto finish = [&](muster::request& r) {
      const auto deadline = muster::deadline_after(patience);
      while (!transport.test(r)) {
        require(muster::clock::now() < deadline, "the request completes");
        transport.pause(muster::deadline_after(0.01s));
      }
    };
    std::vector<std::uint8_t> data(50'000'000);
    muster::request r;
    r.data = reinterpret_cast<std::byte*>(data.data());
    r.bytes = data.size();
    r.peer = 1 - world.rank();
    r.signature.kind = muster::collective::broadcast;  // as part of a collective it is sent without an announcement
    if (world.rank() == 0) {
      std::fill(data.begin(), data.end(), std::uint8_t{7});
      transport.send(r);
      require(r.owner != nullptr, "more than the system takes at once");
      r.owner->cancel(r);
      std::fill(data.begin(), data.end(), std::uint8_t{0});
      muster::request later;
      std::uint8_t last = 9;
      later.data = reinterpret_cast<std::byte*>(&last);
      later.bytes = 1;
      later.peer = 1;
      later.tag = 5;
      transport.send(later);
      finish(later);
    } else {
      transport.receive(r);
      finish(r);
      require(std::all_of(data.begin(), data.end(), [](auto b) { return b == 7; }), "the content that was sent");
      std::uint8_t last = 0;
      muster::request later;
      later.data = reinterpret_cast<std::byte*>(&last);
      later.bytes = 1;
      later.peer = 0;
      later.tag = 5;
      transport.receive(later);
      finish(later);
      require(last == 9, "and what was sent after it");
    }
  });
}
