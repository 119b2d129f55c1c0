// A group that can be taken back: its transport, behind one word that another thread may speak.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <muster/comm/transport.hpp>

#include "timing.hpp"

namespace muster::inline v0::detail {

/// The end of a generation, as all its groups hear of it. Thread safe.
class revocation {
 public:
  /// What a transport itself found out about a rank of the generation.
  using witness = std::function<void(int rank, const std::string& why)>;

  explicit revocation(witness tell) : saw_end_of(std::move(tell)) {}

  /// Every wait in the group and in those made from it ends soon, with the text of the first call.
  void revoke(const std::string& why) {
    std::call_once(once_, [&] {
      why_ = why;
      revoked_.store(true, std::memory_order_release);
    });
  }
  [[nodiscard]] bool revoked() const noexcept { return revoked_.load(std::memory_order_acquire); }
  /// Once it is revoked.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

  const witness saw_end_of;

 private:
  std::once_flag once_;
  std::string why_;
  std::atomic<bool> revoked_{false};
};

/// Another transport, which can be revoked. Adds a call to each.
class revocable_transport final : public transport_decorator {
 public:
  /// `names`: the rank of the generation that each rank of this group is.
  revocable_transport(std::unique_ptr<transport> inner, std::shared_ptr<revocation> by, std::vector<int> names)
      : transport_decorator(std::move(inner)), by_(std::move(by)), names_(std::move(names)) {}

  bool poll(control_message& message) override {
    if (by_->revoked() && !told_) {
      told_ = true;
      message = {};
      message.what = control_message::kind::gone;
      message.origin = rank();  // no rank in particular
      message.status = static_cast<int>(error_kind::peer_failure);
      message.set_text(by_->why());
      return true;
    }
    if (!inner().poll(message)) return false;
    if (message.what == control_message::kind::gone && message.origin >= 0 && message.origin < size())
      by_->saw_end_of(names_[static_cast<std::size_t>(message.origin)], message.text);
    return true;
  }

  void pause(clock::time_point until) override {
    if (!by_->revoked()) inner().pause(std::min(until, clock::now() + elastic_timing::longest_pause));
  }

  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& some) override {
    std::vector<int> names;
    for (const int member : some.members) names.push_back(names_[static_cast<std::size_t>(member)]);
    return std::make_unique<revocable_transport>(inner().subgroup(some), by_, std::move(names));
  }

 private:
  std::shared_ptr<revocation> by_;
  std::vector<int> names_;
  bool told_ = false;
};

}  // namespace muster::inline v0::detail
