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
#include "comm/hierarchical/transport.hpp"
#include "comm/shm/transport.hpp"

namespace test {

/// What the ranks are connected by. Over shared memory private buffers are laid out in it, or read by the system.
/// Hierarchical: as if they were on several hosts, see `host_of`, with the local transport between these.
enum class fabric { local, shm, shm_that_pulls, hierarchical };

inline std::ostream& operator<<(std::ostream& out, fabric over) {
  constexpr const char* names[] = {"local", "shm", "shm that pulls", "hierarchical"};
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

/// Hosts of one to four ranks, interleaved; two ranks share none, and from eight ranks on each has at least two.
inline std::vector<std::uint64_t> host_of(int ranks) {
  constexpr std::uint64_t hosts[] = {0, 1, 0, 0, 2, 1, 0, 2, 1};
  std::vector<std::uint64_t> of;
  for (int r = 0; r < ranks; ++r) of.push_back(hosts[static_cast<std::size_t>(r) % std::size(hosts)]);
  return of;
}

/// Shared memory among ranks that are threads.
class shared_memory {
 public:
  explicit shared_memory(int ranks) : hosts_(make_hosts(ranks)) {
    for (const auto& host : hosts_) {
      lanes_.push_back(muster::detail::shm_board::allocate_lane(host->own(), ranks));
      all_.push_back(host->rank());
    }
  }

  /// Collective.
  [[nodiscard]] std::unique_ptr<muster::detail::shm_transport> connect(int rank, muster::detail::cma_wish wish) const {
    auto made =
        std::make_unique<muster::detail::shm_transport>(hosts_[static_cast<std::size_t>(rank)], all_, rank, lanes_);
    made->agree(wish, muster::deadline_after(muster::seconds(30)));
    return made;
  }

 private:
  std::vector<std::shared_ptr<muster::detail::shm_host>> hosts_;
  std::vector<std::uint64_t> lanes_;
  std::vector<int> all_;
};

/// Connects ranks that are threads, over any fabric. Outlives the transports.
class connections {
 public:
  connections(fabric over, int ranks)
      : over_(over), hub_(std::make_shared<muster::local_hub>(ranks)), map_(host_of(ranks)) {
    if (over == fabric::shm || over == fabric::shm_that_pulls) hosts_.push_back(std::make_unique<shared_memory>(ranks));
    if (over != fabric::hierarchical) return;
    for (const auto& members : map_.hosts)
      hosts_.push_back(std::make_unique<shared_memory>(static_cast<int>(members.size())));
  }

  /// Collective.
  [[nodiscard]] std::unique_ptr<muster::any_transport> connect(int rank) const {
    using muster::detail::cma_wish;
    auto local = std::make_unique<muster::local_transport>(hub_, rank);
    if (over_ == fabric::local) return std::make_unique<muster::any_transport>(std::move(local));
    if (over_ != fabric::hierarchical) {
      const auto wish = over_ == fabric::shm ? cma_wish::never : cma_wish::wherever_allowed;
      return std::make_unique<muster::any_transport>(hosts_.front()->connect(rank, wish));
    }
    const auto index = static_cast<std::size_t>(rank);
    const auto& here = hosts_[static_cast<std::size_t>(map_.host_of[index])];
    auto within = map_.neighbours(rank).size() > 1 ? here->connect(map_.place_of[index], cma_wish::never) : nullptr;
    return std::make_unique<muster::any_transport>(std::make_unique<muster::detail::hierarchical_transport>(
        std::make_unique<muster::any_transport>(std::move(local)), std::move(within), map_));
  }

 private:
  fabric over_;
  std::shared_ptr<muster::local_hub> hub_;
  muster::detail::host_map map_;
  std::vector<std::unique_ptr<shared_memory>> hosts_;
};

/// What each rank threw; null where it did not.
inline std::vector<std::exception_ptr> outcomes(fabric over, int ranks, const std::function<void(muster::group&)>& body,
                                                const muster::group_settings& settings = {}) {
  const auto n = static_cast<std::size_t>(ranks);
  const connections all(over, ranks);
  std::vector<std::exception_ptr> thrown(n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto& failure = thrown[static_cast<std::size_t>(rank)];
      try {
        muster::group world(all.connect(rank), settings);
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
