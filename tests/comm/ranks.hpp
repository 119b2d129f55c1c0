// Runs a body as N ranks that are threads, over any transport.
#pragma once

#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/transports/hierarchical/hierarchical_transport.hpp>
#include <muster/comm/transports/shm/shm_transport.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/error.hpp>
#ifdef MUSTER_HAS_TCP
#include <muster/comm/transports/tcp/tcp_transport.hpp>
#endif

namespace test {

/// The kind of connection between the ranks. Over tcp each rank has its own connections, on the loopback. Hierarchical:
/// as if the ranks were on several hosts, see `host_of`, with the local transport or tcp between hosts.
enum class fabric { threads, shm, tcp, hierarchical, hierarchical_over_tcp };

inline std::ostream& operator<<(std::ostream& out, fabric over) {
  constexpr const char* names[] = {"threads", "shm", "tcp", "hierarchical", "hierarchical over tcp"};
  return out << names[static_cast<int>(over)];
}

/// Returns every kind of fabric in this build, except hierarchical over tcp.
inline std::vector<fabric> fabrics() {
#ifdef MUSTER_HAS_TCP
  return {fabric::threads, fabric::shm, fabric::hierarchical, fabric::tcp};
#else
  return {fabric::threads, fabric::shm, fabric::hierarchical};
#endif
}

/// Returns every kind of fabric in this build, including hierarchical over tcp.
inline std::vector<fabric> every_fabric() {
  auto all = fabrics();
#ifdef MUSTER_HAS_TCP
  all.push_back(fabric::hierarchical_over_tcp);
#endif
  return all;
}

/// Returns the ranks of a host, as threads: all access the same mapping for each rank's memory, so that a race between
/// two ranks is a race on an address, which ThreadSanitizer detects. The hosts outlive the transports over them.
/// `apart`: as if their cores had no cache in common.
inline std::vector<std::shared_ptr<muster::detail::shm_host>> make_hosts(int ranks, bool apart = false) {
  namespace shm = muster::detail;
  constexpr std::size_t reserve = std::size_t{256} << 20;
  const auto n = static_cast<std::size_t>(ranks);
  auto cores = shm::allowed_cores();
  if (apart) cores.back() = CPU_SETSIZE;  // a core that does not exist
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
        std::make_shared<shm::shm_host>(static_cast<int>(r), std::move(segments[r]), std::move(peers[r]), cores));
  }
  return hosts;
}

/// Returns each rank's host: hosts with one to four ranks, interleaved. Two ranks are on different hosts, and from
/// eight ranks on each host has at least two.
inline std::vector<std::uint64_t> host_of(int ranks) {
  constexpr std::uint64_t hosts[] = {0, 1, 0, 0, 2, 1, 0, 2, 1};
  std::vector<std::uint64_t> host_of_rank;
  for (int r = 0; r < ranks; ++r) host_of_rank.push_back(hosts[static_cast<std::size_t>(r) % std::size(hosts)]);
  return host_of_rank;
}

/// Shared memory between ranks that are threads.
class shared_memory {
 public:
  explicit shared_memory(int ranks, bool apart = false) : hosts_(make_hosts(ranks, apart)) {
    for (const auto& host : hosts_) {
      lanes_.push_back(muster::detail::shm_group::allocate_slot(host->own(), ranks));
      all_.push_back(host->rank());
    }
  }

  /// Connects a rank. Collective.
  [[nodiscard]] std::unique_ptr<muster::detail::shm_transport> connect(int rank) const {
    return std::make_unique<muster::detail::shm_transport>(hosts_[static_cast<std::size_t>(rank)], all_, rank, lanes_);
  }

 private:
  std::vector<std::shared_ptr<muster::detail::shm_host>> hosts_;
  std::vector<std::uint64_t> lanes_;
  std::vector<int> all_;
};

#ifdef MUSTER_HAS_TCP
/// Ranks as threads, each with its own sockets, as if they were processes. Instead of a rendezvous, each rank gets all
/// ranks' endpoints.
class tcp_job {
 public:
  explicit tcp_job(int ranks, const muster::detail::tcp_plan& plan = busy_plan()) : plan_(plan) {
    for (int rank = 0; rank < ranks; ++rank) {
      listeners_.push_back(std::make_unique<muster::detail::tcp_listeners>("lo", "the test"));
      endpoints_.push_back(listeners_.back()->endpoints());
    }
  }
  /// Returns settings for a busy machine, on which a thread may wait for a core for a long time.
  static muster::detail::tcp_plan busy_plan() {
    muster::detail::tcp_plan plan;
    plan.missed_heartbeats = 100;
    return plan;
  }
  /// Connects a rank. Called once by each rank.
  std::unique_ptr<muster::detail::tcp_transport> connect(int rank, std::string_view token = "of the test") {
    return muster::detail::connect_mesh(plan_, rank, endpoints_, std::move(*listeners_[static_cast<std::size_t>(rank)]),
                                        token, muster::deadline_after(plan_.connect_timeout));
  }
  [[nodiscard]] const std::vector<std::string>& endpoints() const noexcept { return endpoints_; }

 private:
  muster::detail::tcp_plan plan_;
  std::vector<std::unique_ptr<muster::detail::tcp_listeners>> listeners_;
  std::vector<std::string> endpoints_;
};
#endif

/// Connects ranks that are threads, over any fabric. Outlives the transports.
class connections {
 public:
  connections(fabric over, int ranks)
      : over_(over), hub_(std::make_shared<muster::thread_hub>(ranks)), map_(host_of(ranks)) {
    if (over == fabric::shm) hosts_.push_back(std::make_unique<shared_memory>(ranks, ranks % 2 == 1));
#ifdef MUSTER_HAS_TCP
    if (over == fabric::tcp || over == fabric::hierarchical_over_tcp) job_.emplace(ranks);
#endif
    if (!is_hierarchical()) return;
    for (const auto& members : map_.hosts)
      hosts_.push_back(std::make_unique<shared_memory>(static_cast<int>(members.size())));
  }

  /// Connects a rank. Collective.
  [[nodiscard]] std::unique_ptr<muster::transport> connect(int rank) {
    if (over_ == fabric::shm) return hosts_.front()->connect(rank);
    auto flat = connect_flat(rank);
    if (!is_hierarchical()) return flat;
    const auto index = static_cast<std::size_t>(rank);
    const auto& host = hosts_[static_cast<std::size_t>(map_.host_of[index])];
    auto within = map_.neighbours(rank).size() > 1 ? host->connect(map_.local_rank_of[index]) : nullptr;
    return std::make_unique<muster::detail::hierarchical_transport>(std::move(flat), std::move(within), map_);
  }

 private:
  [[nodiscard]] bool is_hierarchical() const {
    return over_ == fabric::hierarchical || over_ == fabric::hierarchical_over_tcp;
  }
  [[nodiscard]] std::unique_ptr<muster::transport> connect_flat(int rank) {
#ifdef MUSTER_HAS_TCP
    if (job_) return job_->connect(rank);
#endif
    return std::make_unique<muster::thread_transport>(hub_, rank);
  }
  fabric over_;
  std::shared_ptr<muster::thread_hub> hub_;
  muster::detail::host_map map_;
  std::vector<std::unique_ptr<shared_memory>> hosts_;
#ifdef MUSTER_HAS_TCP
  std::optional<tcp_job> job_;
#endif
};

/// Returns each rank's exception; null if the rank did not throw.
inline std::vector<std::exception_ptr> outcomes(fabric over, int ranks, const std::function<void(muster::group&)>& body,
                                                const muster::group_settings& settings = {}) {
  const auto n = static_cast<std::size_t>(ranks);
  connections all(over, ranks);
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
  return outcomes(fabric::threads, ranks, body, settings);
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
  run_ranks(fabric::threads, ranks, body, settings);
}

}  // namespace test
