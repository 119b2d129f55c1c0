// The record that the processes of a job agree on, as each of them sees it.
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
/// changes and, as soon as one is wanted, for the answer to a swap, so that its owner never does. While the store is
/// away it tries again, and the log says so once.
class watched_record {
 public:
  /// What the log says while the store cannot be read.
  struct warning {
    log_level level;
    std::string what;     ///< "the membership"
    std::string outcome;  ///< "no member can leave until it can"
  };

  /// `first`: what is known of it. `ring` is called by that thread when there is something to take.
  watched_record(
      std::shared_ptr<any_store> store, std::string key, warning text, store_entry first = {},
      std::function<void()> ring = [] {});

  /// The newest entry, when it was not taken yet, or when a swap was answered since the last call.
  [[nodiscard]] std::optional<store_entry> take();
  /// The entry becomes that text if it is still of that version. Then `take` gives what is there, or `take_failure`
  /// says that nothing is known.
  void swap(std::uint64_t expected, std::string text);
  [[nodiscard]] bool take_failure() noexcept { return unanswered_.exchange(false); }
  /// Throws what no further try can mend: store_left_behind, or what is no error of the store's.
  void check() const;

 private:
  void run(const std::stop_token& stop);
  void write(std::uint64_t expected, std::string text);
  void learn(store_entry now, bool answered);
  // In a handler: keeps what no further try can mend, and returns the text.
  std::string keep_exception();

  std::shared_ptr<any_store> store_;
  std::string key_;
  warning warning_;
  std::function<void()> ring_;
  std::atomic<bool> news_;
  std::atomic<bool> unanswered_{false};
  mutable std::mutex mutex_;
  store_entry newest_;
  std::optional<std::pair<std::uint64_t, std::string>> swap_;  // that is wanted
  std::stop_source interruption_;                              // of the watch under way
  std::exception_ptr broken_;
  std::jthread thread_;
};

}}}  // namespace muster::v0::detail
