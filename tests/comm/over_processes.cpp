// The oracle test over transports between processes: a launcher starts the program, and every rank draws the same
// cases. The first argument is the number of cases.
#include <muster/muster.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <muster/testing/transport_kit.hpp>
#include "comm/oracle.hpp"
#include "comm/passing_checks.hpp"
#include "comm/uneven_oracle.hpp"
#include "require.hpp"

namespace {

using test::require;

void check_groups(muster::group& world) {
  auto half = world.split(world.rank() % 2, -world.rank());
  const int members = muster::allreduce(half, 1, muster::sum);
  require(members == half.size(), "only the members of a split take part");
  auto twin = world.duplicate();
  double a = world.rank();
  auto pending = muster::allreduce_async(world, std::span(&a, 1), muster::sum);
  const double b = muster::allreduce(twin, 1.0, muster::sum);
  pending.wait();
  require(b == world.size() && a == world.size() * (world.size() - 1) / 2.0, "a duplicate has its own order");
}

// Checks tagged messages beside the collectives, from any source, small and large.
void check_any_source(muster::group& world) {
  auto& transport = world.transport();
  for (const std::size_t count : {std::size_t{3}, std::size_t{50000}}) {
    std::vector<std::uint32_t> data(count, static_cast<std::uint32_t>(world.rank()));
    const auto start = [&](muster::request& r, int peer) {
      r.data = reinterpret_cast<std::byte*>(data.data());
      r.bytes = count * sizeof(std::uint32_t);
      r.peer = peer;
      r.tag = 7;
    };
    const auto finish = [&](muster::request& r) {
      while (!transport.test(r)) transport.pause(muster::deadline_after(muster::seconds(0.001)));
    };
    if (world.rank() != 0) {
      muster::request sending;
      start(sending, 0);
      transport.send(sending);
      finish(sending);
    } else {
      std::vector<int> seen(static_cast<std::size_t>(world.size()), 0);
      for (int i = 1; i < world.size(); ++i) {
        muster::request receiving;
        start(receiving, muster::any_source);
        transport.receive(receiving);
        finish(receiving);
        require(data.back() == static_cast<std::uint32_t>(receiving.source), "the message is its sender's");
        ++seen[static_cast<std::size_t>(receiving.source)];
      }
      for (std::size_t r = 1; r < seen.size(); ++r) require(seen[r] == 1, "one from each");
    }
    muster::barrier(world);
  }
}

// Checks that the body of a message that its receiver abandons, before it arrived or because it is too long, is not
// delivered to a later message when the tags of bodies are used again.
void check_abandoned(muster::group& world, std::size_t room) {
  using muster::testing::detail::parcel;
  auto& transport = world.transport();
  constexpr std::size_t large = 100'000;
  constexpr int tags_of_bodies = 4096;
  const bool sends = world.rank() == 0;
  const auto pass = [&](std::uint64_t message, std::size_t bytes, std::uint32_t tag) {
    parcel passed(message, bytes);
    if (!sends) std::fill(passed.data.begin(), passed.data.end(), std::uint8_t{0});
    passed.start(transport, sends, 1 - world.rank(), tag);
    passed.finish(transport);
    if (!sends) passed.expect(message, bytes);
  };
  if (world.rank() < 2) {
    parcel first(1, large);
    if (sends) first.start(transport, true, 1, 9);
    pass(2, 1, 10);  // sent after the first message, so the first message has arrived too
    if (sends) {
      pass(3, 2, 9);
    } else {
      {
        parcel abandoned(room);
        abandoned.start(transport, false, 0, 9);
        try {
          if (room < large) abandoned.finish(transport);
          require(room >= large, "it is too long");
        } catch (const muster::mismatch_error&) {
        }
      }
      parcel next(large);
      next.start(transport, false, 0, 9);
      next.finish(transport);
      const bool was_abandoned_early = next.r.received == large;
      if (was_abandoned_early) pass(3, 2, 9);
      next.expect(was_abandoned_early ? 1 : 3, was_abandoned_early ? large : 2);
    }
    for (int i = 3; i < tags_of_bodies; ++i) pass(4, 1, 10);
    pass(5, large, 10);
    if (sends) first.finish(transport);
  }
  muster::barrier(world);
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    auto& world = context.world();
    const auto cases = test::cases_of_run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300);
    if (world.rank() == 0) {
      std::printf("seed %llu, %llu cases over %s\n", static_cast<unsigned long long>(cases.seed),
                  static_cast<unsigned long long>(cases.count), context.transport_name().c_str());
    }
    test::check_cases(cases, world);
    test::check_uneven(cases, world);
    test::check_calls(world);
    for (std::uint64_t round = 0; round < 10; ++round) test::check_traffic(world, cases.seed + round, 40);
    check_groups(world);
    check_any_source(world);
    for (const std::size_t room : {100'000, 99'999}) {
      if (context.transport_name() == "mpi" && world.size() > 1) check_abandoned(world, room);
    }
  });
}
