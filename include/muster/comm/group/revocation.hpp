// A token by which another thread ends a group.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

namespace muster { inline namespace v0 { namespace detail {

/// A token by which another thread ends a group and all groups that are made from it. Thread safe.
class revocation {
 public:
  /// Called on the group's thread when the transport of the group reports the end of a rank; not for groups that are
  /// made from the group.
  using revocation_callback = std::function<void(int rank, const std::string& reason)>;

  explicit revocation(revocation_callback callback) : on_peer_ended(std::move(callback)) {}

  /// Ends every wait without progress in these groups within `group_timing::revocable_pause`, with the text of the
  /// first call.
  void revoke(const std::string& reason) {
    std::call_once(once_, [&] {
      reason_ = reason;
      revoked_.store(true, std::memory_order_release);
    });
  }
  /// Records that a group with this token has failed.
  void note_failure() noexcept { failed_.store(true, std::memory_order_release); }
  [[nodiscard]] bool any_failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  [[nodiscard]] bool revoked() const noexcept { return revoked_.load(std::memory_order_acquire); }
  /// Returns the text of the first call of `revoke`; valid once the token is revoked.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

  const revocation_callback on_peer_ended;

 private:
  std::once_flag once_;
  std::string reason_;
  std::atomic<bool> revoked_{false};
  std::atomic<bool> failed_{false};
};

}}}  // namespace muster::v0::detail
