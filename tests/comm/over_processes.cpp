// The oracle test over transports between processes: started by a launcher, every rank draws the same cases. The first
// word says how many.
#include <muster/muster.hpp>

#include <cstdio>
#include <cstdlib>

#include "comm/oracle.hpp"
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
  require(b == world.size() && a == world.size() * (world.size() - 1) / 2.0, "a duplicate has an order of its own");
}

// Tagged messages beside the collectives, from any source, small and large.
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
    check_groups(world);
    check_any_source(world);
  });
}
