// The record on which the processes of a job agree, as seen by one process.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <muster/comm/bootstrap/store.hpp>
#include <muster/core/log.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// An entry of a store that is watched, and changed by compare-and-swap alone. A thread waits for the store, for
/// changes, and for the reply to a requested swap, so that the owner never waits. While the store does not answer, the
/// thread retries, and the log reports that once.
class watched_record {
 public:
  /// The log message while the store cannot be read.
  struct warning {
    log_level level;
    std::string subject;  ///< "the membership"
    std::string outcome;  ///< "no member can leave until it can"
  };

  /// Starts to watch. `initial`: the entry as far as it is known, which `take` returns at once. The thread calls
  /// `notify` when `take`, `take_failure` or `check` has a result.
  watched_record(
      std::shared_ptr<any_store> store, std::string key, warning warning_text, store_entry initial = {},
      std::function<void()> notify = [] {});

  /// Returns the newest entry if it was not taken yet, or if a swap was answered since the last call.
  [[nodiscard]] std::optional<store_entry> take();
  /// Requests that the thread replaces the value by `text` if the version is still `expected`. Does not wait, and
  /// supersedes a request that the thread has not begun. Afterwards `take` returns the entry, or `take_failure` returns
  /// true because the result is unknown.
  void swap(std::uint64_t expected, std::string text);
  /// Returns true if the result of a swap since the last call is unknown.
  [[nodiscard]] bool take_failure() noexcept { return has_failure_.exchange(false); }
  /// Throws the exception that the thread caught and that no retry can repair, if there is one: store_left_behind, or
  /// an exception that is not an error of muster.
  void check() const;

 private:
  // The thread: performs requested swaps, and watches the entry between them.
  void run(const std::stop_token& stop);
  // Performs a requested swap.
  void write(std::uint64_t expected, std::string text);
  // Stores an entry for `take`, if it is newer than the last, or if it answers a swap (`answered`).
  void update(store_entry entry, bool answered);
  // Called in a handler: stores an exception that no retry can repair, and returns its text.
  std::string keep_exception();

  std::shared_ptr<any_store> store_;
  std::string key_;
  warning warning_;
  std::function<void()> notify_;
  std::atomic<bool> has_entry_;
  std::atomic<bool> has_failure_{false};
  mutable std::mutex mutex_;
  store_entry newest_;                                         // guarded by mutex_
  std::optional<std::pair<std::uint64_t, std::string>> swap_;  // the requested swap; guarded by mutex_
  std::stop_source interruption_;                              // stops the watch under way; guarded by mutex_
  std::exception_ptr broken_;                                  // see `check`; guarded by mutex_
  std::jthread thread_;
};

}}}  // namespace muster::v0::detail
