// Runs a body as N ranks that are threads, over the local transport or over shared memory.
#pragma once

#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/local.hpp>
#include <muster/core/error.hpp>
#include "comm/shm/transport.hpp"

namespace test {

/// What the ranks are connected by. Over shared memory private buffers are laid out in it, or read by the system.
enum class fabric { local, shm, shm_that_pulls };

inline std::ostream& operator<<(std::ostream& out, fabric over) {
  constexpr const char* names[] = {"local", "shm", "shm that pulls"};
  return out << names[static_cast<int>(over)];
}

/// The ranks of a host, as threads: all see the one mapping of each rank's memory, so that a race between two of them
/// is one on an address, which ThreadSanitizer sees. They outlive the transports over them.
inline std::vector<std::shared_ptr<muster::detail::shm_host>> make_hosts(int ranks) {
  namespace shm = muster::detail;
  constexpr std::size_t reserve = std::size_t{256} << 20;
  const auto n = static_cast<std::size_t>(ranks);
  const bool crowded = n > std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::unique_ptr<shm::segment>> segments;
  for (std::size_t r = 0; r < n; ++r) segments.push_back(std::make_unique<shm::segment>(reserve));
  std::vector<std::vector<shm::shm_host::peer>> peers(n);
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t p = 0; p < n; ++p)
      peers[r].push_back({r == p ? shm::mapping() : segments[p]->memory().alias(), {}, ::getpid()});
  }
  std::vector<std::shared_ptr<shm::shm_host>> hosts;
  for (std::size_t r = 0; r < n; ++r) {
    hosts.push_back(
        std::make_shared<shm::shm_host>(static_cast<int>(r), std::move(segments[r]), std::move(peers[r]), crowded));
  }
  return hosts;
}

/// What each rank threw; null where it did not.
inline std::vector<std::exception_ptr> outcomes(fabric over, int ranks, const std::function<void(muster::group&)>& body,
                                                const muster::group_settings& settings = {}) {
  namespace shm = muster::detail;
  const auto n = static_cast<std::size_t>(ranks);
  const auto hub = std::make_shared<muster::local_hub>(ranks);
  std::vector<std::shared_ptr<shm::shm_host>> hosts;
  std::vector<std::uint64_t> lanes;
  std::vector<int> all;
  if (over != fabric::local) {
    hosts = make_hosts(ranks);
    for (const auto& host : hosts) {
      lanes.push_back(shm::shm_board::allocate_lane(host->own(), ranks));
      all.push_back(host->rank());
    }
  }
  const auto connect = [&](int rank) {
    if (over == fabric::local)
      return std::make_unique<muster::any_transport>(std::make_unique<muster::local_transport>(hub, rank));
    auto made = std::make_unique<shm::shm_transport>(hosts[static_cast<std::size_t>(rank)], all, rank, lanes);
    made->agree(over == fabric::shm_that_pulls ? shm::cma_wish::wherever_allowed : shm::cma_wish::never,
                muster::deadline_after(muster::seconds(30)));
    return std::make_unique<muster::any_transport>(std::move(made));
  };
  std::vector<std::exception_ptr> thrown(n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto& failure = thrown[static_cast<std::size_t>(rank)];
      try {
        muster::group world(connect(rank), settings);
        try {
          body(world);
        } catch (...) {
          failure = std::current_exception();
          world.abort(muster::describe(failure), muster::exit_status_of(failure));
        }
      } catch (...) {
        failure = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}
inline std::vector<std::exception_ptr> outcomes(int ranks, const std::function<void(muster::group&)>& body,
                                                const muster::group_settings& settings = {}) {
  return outcomes(fabric::local, ranks, body, settings);
}

/// Rethrows the first exception of any rank.
inline void run_ranks(fabric over, int ranks, const std::function<void(muster::group&)>& body,
                      const muster::group_settings& settings = {}) {
  for (const auto& thrown : outcomes(over, ranks, body, settings)) {
    if (thrown) std::rethrow_exception(thrown);
  }
}
inline void run_ranks(int ranks, const std::function<void(muster::group&)>& body,
                      const muster::group_settings& settings = {}) {
  run_ranks(fabric::local, ranks, body, settings);
}

}  // namespace test
