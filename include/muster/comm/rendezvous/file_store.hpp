// A store in a folder that all ranks see: nothing to start, nothing to connect to.
#pragma once

#include <memory>
#include <string>

#include <muster/comm/rendezvous/store.hpp>

namespace muster::inline v0 {

/// Models `store` over files: one a key and one a lease, written whole by an atomic rename under a lock that the system
/// takes back from who dies. So a process that is killed at any moment leaves the store as it was before or after a
/// call.
///
/// The folder must be on a file system whose changes and fcntl locks all ranks see: any of one host; Lustre, GPFS and
/// NFS where locks are on and `lookupcache=none` is. Whoever opens a folder that nobody has open begins with nothing,
/// and the last that closes it removes it. A watch on one host is woken by the system (inotify), others look at most
/// every 50 ms. The holder of a lease touches its file; who reads compares that with the file system's own clock, so
/// the hosts' clocks need not agree, and on the same host sees the death of the holder at once.
class file_store {
 public:
  /// Opens the store in `folder`, which is made if it is not there (the folder it is in is not). Throws
  /// configuration_error when it cannot be written to or has no locks.
  file_store(std::string folder, clock::time_point until);
  file_store(file_store&&) noexcept;
  file_store& operator=(file_store&&) = delete;
  /// Ends the leases of this object and closes the store.
  ~file_store();

  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until);
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, std::uint64_t lease = 0);
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until);
  [[nodiscard]] store_lease lease(seconds ttl, clock::time_point until);
  [[nodiscard]] std::string where() const;

 private:
  struct implementation;
  std::shared_ptr<implementation> self_;
};

static_assert(store<file_store>);

}  // namespace muster::inline v0
