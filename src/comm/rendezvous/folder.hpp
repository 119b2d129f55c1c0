// The files of a file store: entries, leases, the lock and the revision.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <muster/comm/rendezvous/store.hpp>
#include <muster/core/clock.hpp>

#include "../../core/descriptor.hpp"

namespace muster::inline v0::detail {

/// An entry as its file has it.
struct stored_entry {
  store_entry entry;
  std::uint64_t lease = 0;
};

/// A folder that is open as a store. Thread safe.
///
///   revision   the version of the last write, in decimal. Its first byte is locked by who writes to the store, its
///              second is shared by all who have the store open.
///   k-NAME     an entry: a line of text with its version and lease, then key and value
///   l-ID       a lease: a line of text; locked and touched by its holder. A lease has ended when its file is gone, and
///              not before: whoever finds its holder dead or silent removes it, under the lock.
///   new        what the one who writes is writing; renamed to k-NAME
class store_folder {
 public:
  store_folder(std::string path, clock::time_point until);
  store_folder(const store_folder&) = delete;
  store_folder& operator=(const store_folder&) = delete;
  ~store_folder();

  /// The right to write to the store.
  class writer {
   public:
    writer(writer&& other) noexcept : folder_(std::exchange(other.folder_, nullptr)) {}
    writer& operator=(writer&&) = delete;
    ~writer();

   private:
    friend class store_folder;
    explicit writer(store_folder* folder) noexcept : folder_(folder) {}
    store_folder* folder_;
  };

  /// Nothing when the deadline comes first.
  [[nodiscard]] std::optional<writer> lock(clock::time_point until);

  /// What the file of the key has, whatever became of its lease.
  [[nodiscard]] std::optional<stored_entry> read(std::string_view key) const;
  /// Writes the entry under a new version, which it returns.
  std::uint64_t write(writer& right, std::string_view key, std::string_view value, std::uint64_t lease);
  void remove(writer& right, std::string_view key);

  /// A new lease. The descriptor is what its holder holds: closing it lets the lease go, as dying does.
  [[nodiscard]] std::pair<std::uint64_t, descriptor> grant(writer& right, seconds ttl);
  enum class life { alive, silent, ended };
  [[nodiscard]] life look_at(std::uint64_t lease) const;
  /// Ends the lease: its keys are gone with it.
  void bury(writer& right, std::uint64_t lease);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  bool open_revision(clock::time_point until);
  bool lock_first_byte(clock::time_point until);
  void unlock() noexcept;
  void clear() const;
  [[nodiscard]] std::string path_of(std::string_view key) const;
  [[nodiscard]] std::string path_of_lease(std::uint64_t lease) const;
  [[noreturn]] void fail(const std::string& what, int code) const;
  [[noreturn]] void refuse(int code) const;

  std::string path_;
  std::string boot_;  // what tells this run of this host's system from others
  descriptor revision_;
  std::mutex mutex_;
  std::condition_variable freed_;
  bool locked_ = false;  // by a thread of this object: the file lock is the object's
};

}  // namespace muster::inline v0::detail
