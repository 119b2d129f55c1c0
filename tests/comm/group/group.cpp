// Groups: splitting, order, works, threads.
#include <muster/comm/group.hpp>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <thread>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/gather.hpp>
#include <muster/core/error.hpp>
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "require.hpp"

using namespace std::chrono_literals;

using test::require;

TEST_CASE("split puts the ranks of a color in the order of their keys") {
  const auto over = GENERATE(from_range(test::fabrics()));
  test::run_ranks(over, 7, [](muster::group& world) {
    const int color = world.rank() % 2;
    auto part = world.split(color, -world.rank());
    const int expected_size = color == 0 ? 4 : 3;
    require(part.size() == expected_size, "size");
    require(part.rank() == expected_size - 1 - world.rank() / 2, "rank by descending key");
    const int sum = muster::allreduce(part, world.rank(), muster::sum);
    require(sum == (color == 0 ? 0 + 2 + 4 + 6 : 1 + 3 + 5), "only members take part");
    auto again = part.split(0);  // split of a child group
    require(muster::allreduce(again, 1, muster::sum) == expected_size, "split of a split");
    auto alone = world.split(-1);
    require(alone.size() == 1 && alone.rank() == 0, "a rank with a negative color is alone");
    muster::barrier(alone);
  });
}

TEST_CASE("a duplicate keeps an order of its own") {
  const auto over = GENERATE(from_range(test::fabrics()));
  test::run_ranks(over, 3, [](muster::group& world) {
    auto other = world.duplicate();
    int a = world.rank() == 0 ? 5 : 0;
    int b = world.rank() == 1 ? 6 : 0;
    // Ranks start the two collectives in different orders: only possible since the groups are independent.
    if (world.rank() == 0) {
      auto first = muster::broadcast_async(world, std::span(&a, 1), 0);
      muster::broadcast(other, std::span(&b, 1), 1);
      first.wait();
    } else {
      auto first = muster::broadcast_async(other, std::span(&b, 1), 1);
      muster::broadcast(world, std::span(&a, 1), 0);
      first.wait();
    }
    require(a == 5 && b == 6, "values");
  });
}

TEST_CASE("the sequence number counts the collectives") {
  const auto over = GENERATE(from_range(test::fabrics()));
  test::run_ranks(over, 2, [](muster::group& world) {
    require(world.sequence() == 0, "starts at 0");
    muster::barrier(world);
    (void)muster::allreduce(world, 1.0f, muster::sum);
    require(world.sequence() == 2, "two calls");
  });
}

TEST_CASE("a work that is dropped is waited for") {
  const auto over = GENERATE(from_range(test::fabrics()));
  test::run_ranks(over, 3, [](muster::group& world) {
    std::vector<int> data(10000, 1);
    { const auto dropped = muster::allreduce_async(world, data, muster::sum); }
    for (const int x : data) require(x == 3, "the result is there when the work is gone");
  });
}

// In registered memory a waiting rank folds the blocks that no rank has started, if ranks share cores.
TEST_CASE("over shm, where ranks share cores, a rank that has called holds no other up, whatever it does then") {
  const int ranks = static_cast<int>(std::max(1u, std::thread::hardware_concurrency())) + 1;
  const std::size_t count = 100'003;
  std::atomic<bool> go{false};
  test::run_ranks(test::fabric::shm, ranks, [&](muster::group& world) {
    muster::buffer<float> data(count, world.transport().memory());
    for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(world.rank() + static_cast<int>(i % 7));
    auto work = muster::allreduce_async(world, data.span(), muster::sum);
    if (world.rank() != 0) go.wait(false);
    const std::shared_ptr<void> at_the_end(nullptr, [&](void*) {
      go = true;
      go.notify_all();
    });
    work.wait();
    const int of_all = ranks * (ranks - 1) / 2;
    for (std::size_t i = 0; i < count; ++i)
      require(data[i] == static_cast<float>(of_all + ranks * static_cast<int>(i % 7)), "the sum");
  });
}

TEST_CASE("wrong sizes and roots are refused before anything is sent") {
  const auto over = GENERATE(from_range(test::fabrics()));
  test::run_ranks(over, 2, [over](muster::group& world) {
    std::vector<float> in(10), out(9);
    const auto refuses = [](auto&& call) {
      try {
        call();
      } catch (const muster::configuration_error&) {
        return;
      }
      throw std::runtime_error("accepted");
    };
    refuses([&] { muster::allreduce(world, in, out, muster::sum); });
    refuses([&] { muster::allgather(world, in, out); });
    refuses([&] { muster::broadcast(world, in, 2); });
    refuses([&, below = std::atoi("-1")] { muster::broadcast(world, in, below); });  // not known to the compiler
    refuses([&] { muster::broadcast(world, in, 0, {.algorithm = muster::algorithm::ring}); });
    if (over == test::fabric::threads)
      refuses([&] { muster::allreduce(world, in, muster::sum, {.algorithm = muster::algorithm::native}); });
    if (world.rank() == 0) refuses([&] { muster::gather(world, in, out, 0); });
    const muster::seconds nan{std::numeric_limits<double>::quiet_NaN()};
    for (const auto never : {muster::seconds(-1), nan}) {
      refuses([&] { muster::broadcast(world, in, 0, {.timeout = never}); });
      refuses([&] { (void)muster::broadcast_async(world, in, 0, {.timeout = never}); });
      refuses([&] { world.set_settings({.timeout = never}); });
    }
    refuses([&] { world.set_settings({.timeout = muster::seconds(0)}); });
    require(world.sequence() == 0, "a refused call is not counted");
    muster::barrier(world);
  });
}

TEST_CASE("wait_for says whether it is done and does not fail when it is not") {
  const auto over = GENERATE(from_range(test::fabrics()));
  std::atomic<bool> go{false};
  test::run_ranks(over, 2, [&](muster::group& world) {
    if (world.rank() == 1) {
      go.wait(false);
      muster::barrier(world);
      return;
    }
    auto work = muster::barrier_async(world);
    require(!work.wait_for(10ms), "rank 1 has not called");
    require(!work.test(), "rank 1 has not called");
    go = true;
    go.notify_all();
    work.wait();
    require(work.test(), "done stays done");
  });
}

// Each thread also polls the world. This was a data race if the polling took no lock.
TEST_CASE("a parent is used while a progress thread works on its child, and settings change meanwhile") {
  const auto over = GENERATE(from_range(test::fabrics()));
  test::run_ranks(over, 2, [&](muster::group& world) {
    auto child = world.split(0);
    muster::group_settings settings = child.settings();
    settings.progress_thread = true;
    child.set_settings(settings);
    std::vector<float> values(20000, 1.0f);
    for (int round = 0; round < 20; ++round) {
      auto work = muster::allreduce_async(child, values, muster::max);
      for (int i = 0; i < 5; ++i) muster::barrier(world);
      settings.timeout = muster::seconds(30 + round);
      child.set_settings(settings);
      work.wait();
    }
    require(values.front() == 1.0f && values.back() == 1.0f, "the greatest");
  });
}
