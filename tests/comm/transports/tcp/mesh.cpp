// The tcp transport beyond what every transport does: its settings, groups, and messages beyond the credit.
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

// The connection once kept a pointer to the message, which was freed.
TEST_CASE("a group is closed after a message of its that came before its receive", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.window = 4096;
  run(plan, 2, [](muster::group& world, tcp::tcp_mesh&) {
    for (int round = 0; round < 20; ++round) {
      auto both = world.split(0);
      std::vector<int> values(8000, world.rank() == 0 ? round : -1);
      if (world.rank() == 1) muster::barrier(world);  // what it reads before that is put aside
      muster::broadcast(both, std::span(values), 0);
      if (world.rank() == 0) muster::barrier(world);
      require(std::count(values.begin(), values.end(), round) == 8000, "the root's values");
    }
  });
}

// More tagged messages than there is credit for, of all sizes, and no receive for them: collectives pass.
TEST_CASE("collectives do not wait behind tagged messages that have no receive", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.eager = 1000;
  plan.limits.credit = 8000;
  run(plan, 3, [](muster::group& world, tcp::tcp_mesh&) {
    auto& over = world.transport();
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
      over.send(sent[i]);
    }
    std::vector<double> values(30000, 1.0);
    for (int i = 0; i < 5; ++i) muster::allreduce(world, values, muster::sum);
    require(values[29999] == 243.0, "the sum");
    // Tag by tag, from the last, so that what lies in front is put aside.
    for (std::uint32_t tag = 3; tag >= 1; --tag) {
      for (std::size_t i = tag - 1; i < count; i += 3) {
        std::vector<std::uint8_t> got(30000);
        muster::request r;
        r.data = reinterpret_cast<std::byte*>(got.data());
        r.bytes = got.size();
        r.peer = i % 2 == 0 ? previous : muster::any_source;
        r.tag = tag;
        over.receive(r);
        const auto until = muster::deadline_after(patience);
        while (!over.test(r)) {
          require(muster::clock::now() < until, "it comes");
          over.pause(muster::deadline_after(0.01s));
        }
        require(r.received == size_of(i) && r.source == previous, "in its order");
        for (std::size_t k = 0; k < r.received; ++k) require(got[k] == static_cast<std::uint8_t>(i), "its content");
      }
    }
    for (auto& r : sent) {
      const auto until = muster::deadline_after(patience);
      while (!over.test(r)) require(muster::clock::now() < until, "it is gone");
    }
    muster::barrier(world);
  });
}

// A rank waits for what lies behind: it puts aside what its peer may send unasked, and the rest stays with the peer.
TEST_CASE("what is put aside of collectives that a rank has not come to is limited", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.credit = 400'000;
  const std::size_t bytes = GENERATE(0, 1000, 90'000, 1'000'000);
  constexpr std::size_t count = 2000;
  const std::size_t messages = bytes < 10'000 ? count : 40;
  flag behind_has_come, counted;
  run(plan, 2, [&](muster::group& world, tcp::tcp_mesh&) {
    auto& over = world.transport();
    std::deque<parcel> all;
    for (std::size_t i = 0; i < messages; ++i)
      all.emplace_back(bytes, world.rank() == 0 ? static_cast<std::uint8_t>(i) : 0, i).with(1 - world.rank(), 0);
    parcel behind(8, 1);
    behind.with(1 - world.rank(), 5);
    if (world.rank() == 0) {
      for (auto& one : all) over.send(one.r);
      over.send(behind.r);
      behind.finish(over);
      behind_has_come.wait();
      const auto gone = static_cast<std::size_t>(
          std::count_if(all.begin(), all.end(), [&](parcel& one) { return over.test(one.r); }));
      counted.raise();
      require(gone * (bytes + 256) <= 400'000, "no more than the credit has gone: " + std::to_string(gone));
      for (auto& one : all) one.finish(over);
    } else {
      over.receive(behind.r);
      behind.finish(over);
      behind_has_come.raise();
      counted.wait();
      for (auto& one : all) over.receive(one.r);
      for (std::size_t i = 0; i < messages; ++i) {
        all[i].finish(over);
        require(all[i].is_all(static_cast<std::uint8_t>(i)), "message " + std::to_string(i) + " in its order");
      }
    }
    muster::barrier(world);
  });
}

// What lay unread in it may be sent anew: an eager message ends for its sender even without a receive.
TEST_CASE("a group that is closed gives back the credit of what it had not taken", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.credit = 40'000;
  flag done;
  run(plan, 2, [&](muster::group& world, tcp::tcp_mesh&) {
    auto& over = world.transport();
    parcel last(20'000, 3);
    last.with(1 - world.rank(), 5);
    {
      auto twin = world.duplicate();
      if (world.rank() == 0) {
        parcel left(30'000, 2);
        twin.transport().send(left.with(1, 5).r);
        left.finish(twin.transport());
      }
      muster::barrier(world);  // behind it: it is put aside
    }
    for (int i = 0; i < 2; ++i) muster::barrier(world);  // there and back
    if (world.rank() == 0) {
      over.send(last.r);
      last.finish(over);
      done.raise();
    } else {
      done.wait();
      over.receive(last.r);
      last.finish(over);
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
    auto& over = world.transport();
    const auto finish = [&](muster::request& r) {
      const auto until = muster::deadline_after(patience);
      while (!over.test(r)) {
        require(muster::clock::now() < until, "it comes to its end");
        over.pause(muster::deadline_after(0.01s));
      }
    };
    std::vector<std::uint8_t> data(50'000'000);
    muster::request r;
    r.data = reinterpret_cast<std::byte*>(data.data());
    r.bytes = data.size();
    r.peer = 1 - world.rank();
    r.signature.kind = muster::collective::broadcast;  // as part of a collective: it comes unasked
    if (world.rank() == 0) {
      std::fill(data.begin(), data.end(), std::uint8_t{7});
      over.send(r);
      require(r.owner != nullptr, "more than the system takes at once");
      r.owner->cancel(r);
      std::fill(data.begin(), data.end(), std::uint8_t{0});
      muster::request behind;
      std::uint8_t last = 9;
      behind.data = reinterpret_cast<std::byte*>(&last);
      behind.bytes = 1;
      behind.peer = 1;
      behind.tag = 5;
      over.send(behind);
      finish(behind);
    } else {
      over.receive(r);
      finish(r);
      require(std::all_of(data.begin(), data.end(), [](auto b) { return b == 7; }), "the content that was sent");
      std::uint8_t last = 0;
      muster::request behind;
      behind.data = reinterpret_cast<std::byte*>(&last);
      behind.bytes = 1;
      behind.peer = 0;
      behind.tag = 5;
      over.receive(behind);
      finish(behind);
      require(last == 9, "and what was sent after it");
    }
  });
}
