// The ranks of a job that share a host: their memory, mapped, and a way to see that one of them is dead.
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

#include "../../../core/copy.hpp"
#include "segment.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// What every rank of the host has of every other. Made once a process by `meet`, shared by all its groups.
class shm_host {
 public:
  struct peer {
    mapping memory;             // of others; this rank's is `own`
    descriptor process_handle;  // a pidfd, readable when the process has ended; none where the system has no such thing
    pid_t process = 0;
    std::uint64_t slot = 0;  // where in its memory it laid out what it shares with the first group
  };

  /// `own` may outlive it: another host of the same process, with other peers, uses the same memory later.
  /// `cores`: on which any of the ranks may run; none if that is not known.
  shm_host(int rank, std::shared_ptr<segment> own, std::vector<peer> peers, std::span<const std::uint32_t> cores);

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(peers_.size()); }
  /// More ranks than cores that they may run on.
  [[nodiscard]] bool oversubscribed() const noexcept { return oversubscribed_; }
  /// Copies to memory that this rank writes and others read, over and over: `bytes` of `whole`. Where their cores share
  /// no cache, a store to a line that another core has read takes 26 ns, however many are under way, and one past the
  /// caches 2.4 (docs/lab-notes.md).
  void put(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t whole = 0) const noexcept {
    copy_out(to, from, bytes, cores_apart_ && bytes >= least_past_caches ? ~std::size_t{0} : whole);
  }
  /// Whether every rank's death would be seen.
  [[nodiscard]] bool sees_death() const noexcept { return sees_death_; }
  [[nodiscard]] segment& own() noexcept { return *own_; }
  [[nodiscard]] const segment& own() const noexcept { return *own_; }
  [[nodiscard]] std::uint64_t slot(int rank) const noexcept { return peers_[static_cast<std::size_t>(rank)].slot; }
  [[nodiscard]] pid_t process(int rank) const noexcept { return peers_[static_cast<std::size_t>(rank)].process; }
  /// Where byte `offset` of that rank's memory lies in this process.
  [[nodiscard]] std::byte* at(int rank, std::uint64_t offset) const noexcept {
    return rank == rank_ ? own_->memory().at(offset) : peers_[static_cast<std::size_t>(rank)].memory.at(offset);
  }
  /// Whether that rank's process has ended; one system call.
  [[nodiscard]] bool ended(int rank) const noexcept;

  /// Memory of `own` that can be given back when `users` ranks have raised the count in it.
  struct retired {
    std::byte* memory;
    std::size_t bytes;
    std::atomic<std::uint32_t>* leavers;
    std::uint32_t users;
  };
  void retire(const retired& what);
  /// Gives back what was retired and is not used any more: all of it, when none of its users lives. What a dead rank
  /// still held goes with the process.
  void give_back(bool all) noexcept;

 private:
  static constexpr std::size_t least_past_caches = 4096;  // less waits for its way to the memory and back

  int rank_;
  std::shared_ptr<segment> own_;
  std::vector<peer> peers_;
  bool oversubscribed_;
  bool cores_apart_;  // two of them have no third-level cache in common
  bool sees_death_ = true;
  std::mutex mutex_;
  std::vector<retired> retired_;
};

/// How much address space each rank's memory gets in each process: enough for all memory there is, and for all ranks
/// to fit.
[[nodiscard]] std::size_t reserve_for(int ranks) noexcept;

/// Throws peer_failure.
[[noreturn]] void fail_bootstrap_without(int rank);

/// Collective over the `size` processes that use the same `name`: they exchange their memory over a Unix socket of that
/// name, which lives in no file system. Processes of another user or program are refused. Throws
/// timeout_error naming the ranks that did not come, peer_failure when one dies on the way, or when `given_up`, which
/// is asked every few milliseconds, says so. `slot` is what the others find under `shm_host::slot`.
[[nodiscard]] std::shared_ptr<shm_host> bootstrap_host(const std::string& name, int rank, int size,
                                                       std::shared_ptr<segment> own, seconds timeout,
                                                       std::uint64_t slot = 0,
                                                       const std::function<bool()>& given_up = {});

}}}  // namespace muster::v0::detail
