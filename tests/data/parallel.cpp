#include <muster/data/parallel.hpp>

#include <chrono>
#include <string>

#include "catch.hpp"

TEST_CASE("every task is done once, by any number of threads") {
  for (const int threads : {0, 1, 2, 5}) {
    for (const std::size_t tasks : {0u, 1u, 2u, 1000u}) {
      std::vector<std::atomic<int>> done(tasks);
      muster::data::detail::parallel_for(tasks, threads, [&](std::size_t task) { ++done[task]; });
      CHECK(std::all_of(done.begin(), done.end(), [](const auto& times) { return times == 1; }));
    }
  }
  CHECK(muster::data::detail::thread_count(3, 100) == 3);
  CHECK(muster::data::detail::thread_count(3, 2) == 2);
  CHECK(muster::data::detail::thread_count(3, 0) == 1);
}

TEST_CASE("of several failures the one of the lowest task comes out, though it comes last") {
#ifndef MUSTER_HAVE_TBB
  WARN("SKIPPED: without oneTBB one thread does all tasks, and the first failure is the only one");
  return;
#endif
  std::atomic<bool> second_failed = false;
  std::atomic<int> later = 0;
  const auto body = [&](std::size_t task) {
    if (task == 0) {
      while (!second_failed) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that the other failure is recorded first
    } else if (task == 1) {
      second_failed = true;
    } else {
      ++later;
      return;
    }
    throw std::runtime_error(std::to_string(task));
  };
  CHECK_THROWS_WITH(muster::data::detail::parallel_for(1'000'000'000, 2, body), "0");
  CHECK(later < 1'000'000'000);
}
