// The calls of a process' threads at a store that others carry: who waits for which answer, and which leases are kept.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <muster/comm/rendezvous/store.hpp>

#include "store_protocol.hpp"

namespace muster::inline v0::detail {

/// What a `store` does, over requests that travel and answers that come. How they do is the derived class' business,
/// which has a thread for it.
class store_calls {
 public:
  explicit store_calls(std::string where) : where_(std::move(where)) {}
  store_calls(const store_calls&) = delete;
  store_calls& operator=(const store_calls&) = delete;
  virtual ~store_calls() = default;

  /// As a client that has no part in the table yet: its identity, a new one where no client has a part.
  [[nodiscard]] std::string open(clock::time_point until);
  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until);
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, std::uint64_t lease);
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until);
  /// The lease outlives the store.
  [[nodiscard]] static store_lease lease(const std::shared_ptr<store_calls>& store, seconds ttl,
                                         clock::time_point until);
  [[nodiscard]] const std::string& where() const noexcept { return where_; }
  /// Whether no call is answered any more.
  [[nodiscard]] bool has_ended() const {
    const std::lock_guard held(mutex_);
    return is_lost();
  }

 protected:
  /// An answer with a text of its own.
  struct answer {
    store_status status = store_status::done;
    std::uint64_t number = 0;
    std::string value;
  };

  /// Sends it on its way without waiting. Its texts live as long as the call does. With the mutex held.
  virtual void ask(const store_request& asked) = 0;
  /// There is a lease to keep that was not there before.
  virtual void wake() noexcept = 0;

  // By the thread of the derived class, with the mutex held.
  void take(const store_reply& said);
  void keep_leases(clock::time_point now);
  [[nodiscard]] clock::time_point next_keeping() const;
  /// No call is answered any more: `why` ends "the store ... is lost (".
  void lose(const std::string& why);
  [[nodiscard]] bool is_lost() const noexcept { return !lost_.empty(); }

  mutable std::mutex mutex_;

 private:
  struct waiting {
    std::condition_variable answered;
    std::optional<answer> came;
  };
  /// A lease of this process: kept alive.
  struct kept_lease {
    seconds ttl{};
    clock::time_point asked{};   // when the store was last asked to keep it, and said yes
    clock::time_point asking{};  // when it is being asked now
    bool is_being_asked = false;
    bool held = true;
  };
  class holder;

  /// Asks and waits; nothing when the deadline comes first (a watch is then taken back). Chooses the id itself. Throws
  /// peer_failure when the store is lost.
  [[nodiscard]] std::optional<answer> wait_for(store_request asked, clock::time_point until);
  [[nodiscard]] answer call(const char* name, const store_request& asked, clock::time_point until);
  void end_keeping(std::uint64_t id) noexcept;
  [[nodiscard]] bool is_kept(std::uint64_t id) const noexcept;
  [[noreturn]] void fail() const;

  std::string where_;
  std::map<std::uint64_t, waiting*> calls_;
  std::map<std::uint64_t, kept_lease> leases_;
  std::uint64_t last_id_ = 0;
  std::string lost_;  // why, when it is
};

}  // namespace muster::inline v0::detail
