// Runs a body as N ranks that are threads, over the local transport.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/local.hpp>
#include <muster/core/error.hpp>

namespace test {

/// What each rank threw; null where it did not.
inline std::vector<std::exception_ptr> outcomes(int ranks, const std::function<void(muster::group&)>& body,
                                                const muster::group_settings& settings = {}) {
  auto hub = std::make_shared<muster::local_hub>(ranks);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      muster::group world(std::make_unique<muster::any_transport>(std::make_unique<muster::local_transport>(hub, rank)),
                          settings);
      try {
        body(world);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
        world.abort(muster::describe(std::current_exception()), muster::exit_status_of(std::current_exception()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

/// Rethrows the first exception of any rank.
inline void run_ranks(int ranks, const std::function<void(muster::group&)>& body,
                      const muster::group_settings& settings = {}) {
  for (const auto& thrown : outcomes(ranks, body, settings)) {
    if (thrown) std::rethrow_exception(thrown);
  }
}

}  // namespace test
