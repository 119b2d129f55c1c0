// The ranks of a job that share a host: their mapped memory, and the detection of a rank's death.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <muster/core/clock.hpp>

#include <muster/comm/transports/shm/segment.hpp>
#include <muster/core/copy.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The host's ranks, as a process accesses them. Made by `bootstrap_host`, and shared by all groups that are made from
/// it. Thread safe.
class shm_host {
 public:
  struct peer {
    mapping memory;             // the peer's memory; empty for this rank, whose memory is `own`
    descriptor process_handle;  // a pidfd, readable when the process has ended; empty where the system has no pidfds
    pid_t process = 0;
    std::uint64_t slot = 0;  // offset, in the peer's memory, of the peer's slot for the first group
  };

  /// Takes every rank's memory. `own` may outlive this object: a later shm_host of the same process, with other
  /// peers, uses the same memory. `cores` are the cores on which any of the ranks may run; empty if unknown.
  shm_host(int rank, std::shared_ptr<segment> own, std::vector<peer> peers, std::span<const std::uint32_t> cores);

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(peers_.size()); }
  /// Returns true if there are more ranks than cores on which the ranks may run.
  [[nodiscard]] bool oversubscribed() const noexcept { return oversubscribed_; }
  /// Copies `bytes` bytes to memory that this rank repeatedly writes and peers read. The bytes are part of a copy of
  /// `total` bytes. If the cores share no cache, a store to a line that another core has read takes 26 ns, however many
  /// stores are pending. A store that bypasses the caches takes 2.4 ns (bench/results/lab-notes.csv), so copies from
  /// `least_past_caches` bytes on then bypass the caches.
  void put(std::byte* destination, const std::byte* source, std::size_t bytes, std::size_t total = 0) const noexcept {
    copy_out(destination, source, bytes, no_shared_cache_ && bytes >= least_past_caches ? ~std::size_t{0} : total);
  }
  /// Returns true if this rank can detect the death of each other rank.
  [[nodiscard]] bool sees_death() const noexcept { return sees_death_; }
  [[nodiscard]] segment& own() noexcept { return *segment_; }
  [[nodiscard]] const segment& own() const noexcept { return *segment_; }
  [[nodiscard]] std::uint64_t slot(int rank) const noexcept { return peers_[static_cast<std::size_t>(rank)].slot; }
  [[nodiscard]] pid_t process(int rank) const noexcept { return peers_[static_cast<std::size_t>(rank)].process; }
  /// Returns the address in this process for byte `offset` in the rank's memory.
  [[nodiscard]] std::byte* at(int rank, std::uint64_t offset) const noexcept {
    return rank == rank_ ? segment_->memory().at(offset) : peers_[static_cast<std::size_t>(rank)].memory.at(offset);
  }
  /// Returns true if that rank's process has ended. Costs one system call.
  [[nodiscard]] bool ended(int rank) const noexcept;
  /// Returns the pidfd of that rank's process, which is readable when the process has ended; -1 where the system has no
  /// pidfds.
  [[nodiscard]] int process_descriptor(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].process_handle.get();
  }

  /// Memory of `own` that is released when `users` ranks have raised `leavers`.
  struct retired {
    std::byte* memory;
    std::size_t bytes;
    std::atomic<std::uint32_t>* leavers;
    std::uint32_t users;
  };
  /// Registers memory for `release_retired`.
  void retire(const retired& area);
  /// Releases the retired memory that no rank uses any more; all retired memory if `all`, when no user lives. Otherwise
  /// memory that a dead rank used is freed when this process ends.
  void release_retired(bool all) noexcept;

 private:
  static constexpr std::size_t least_past_caches = 4096;  // a shorter copy would wait for the memory

  int rank_;
  std::shared_ptr<segment> segment_;
  std::vector<peer> peers_;
  bool oversubscribed_;
  bool no_shared_cache_;  // set when two of the cores share no third-level cache
  bool sees_death_ = true;
  std::mutex mutex_;  // guards retired_memory_
  std::vector<retired> retired_memory_;
};

/// Returns the address space in bytes to reserve for each rank's memory in each process: enough for all memory of the
/// host, and small enough that every rank's memory fits.
[[nodiscard]] std::size_t reserve_for(int rank_count) noexcept;

/// Throws the peer_failure of a bootstrap in which `rank` ended.
[[noreturn]] void fail_bootstrap_without(int rank);

/// Connects the `rank_count` processes that use the same `name`. Collective. The processes exchange their memory over a
/// Unix socket with that name in the abstract namespace, which is outside the file system. Processes of another user or
/// program are refused. Throws timeout_error that names the missing ranks, or peer_failure when a rank dies during the
/// exchange or when `is_aborted` returns true. `is_aborted` is called every few milliseconds. `slot` is the value that
/// peers find in `shm_host::slot`.
[[nodiscard]] std::shared_ptr<shm_host> bootstrap_host(const std::string& name, int rank, int rank_count,
                                                       std::shared_ptr<segment> own, seconds timeout,
                                                       std::uint64_t slot = 0,
                                                       const std::function<bool()>& is_aborted = {});

}}}  // namespace muster::v0::detail
