// A group that another thread can take back.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

namespace muster { inline namespace v0 { namespace detail {

/// The end of a group and of those made from it, as another thread decides it. Thread safe.
class revocation {
 public:
  /// Gets what the group's transport found out about one of its ranks, on the group's thread.
  using witness = std::function<void(int rank, const std::string& why)>;

  explicit revocation(witness tell) : saw_end_of(std::move(tell)) {}

  /// Every wait in these groups ends soon, with the text of the first call.
  void revoke(const std::string& why) {
    std::call_once(once_, [&] {
      why_ = why;
      revoked_.store(true, std::memory_order_release);
    });
  }
  /// A group that it ends has failed, or one made from such a group.
  void note_failure() noexcept { failed_.store(true, std::memory_order_release); }
  [[nodiscard]] bool any_failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  [[nodiscard]] bool revoked() const noexcept { return revoked_.load(std::memory_order_acquire); }
  /// Once it is revoked.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

  const witness saw_end_of;

 private:
  std::once_flag once_;
  std::string why_;
  std::atomic<bool> revoked_{false};
  std::atomic<bool> failed_{false};
};

}}}  // namespace muster::v0::detail
