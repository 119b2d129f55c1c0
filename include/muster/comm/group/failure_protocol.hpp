// Notification of failures between the ranks of a group, by control messages that are independent of the collectives.
//
// Every rank sends these messages to all peers:
// - position: the sender waits in this collective for an unusually long time. Each receiver compares the collective
// with its own call of the same sequence number, and fails with mismatch_error if they differ.
// - abort: the sender has failed by its own cause, and has left the group.
// - acknowledge: the sender has failed because it received another rank's abort or because the parent group has failed,
//   and has left the group.
// - leave: the sender left the group without an error, after `signature.sequence` calls.
// The transport itself reports `peer_ended`: the rank `origin` has died or its connection broke.
//
// Order and invariant: a group fails once, by the first cause that this rank has or receives. A rank that fails by its
// own cause sends abort to all. A rank that receives abort sends acknowledge to all and does not abort a second time. A
// rank that receives leave fails only if it has made more calls than the sender, and only after
// `group_timing::late_reason`, because the sender's reason may still arrive in the parent group. A rank whose transport
// reports `peer_ended` treats the end of that rank as its own cause and sends abort, because a dead rank sends nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/comm/comm_timing.hpp>
#include <muster/comm/group/call_history.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The end of a peer's part in the group.
struct departure {
  int status = 0;
  /// true when the peer sent abort; false when the peer followed another rank, left without an error, or has ended
  bool failed_by_own_cause = false;
  std::string text;
};

/// Detects by control messages which rank is missing, which disagrees and which has failed. A group fails once, by the
/// first cause that this rank has or receives. A rank with its own cause notifies all other ranks, which follow.
class failure_protocol {
 public:
  explicit failure_protocol(transport& transport);

  /// Returns this rank's calls.
  [[nodiscard]] call_history& calls() noexcept { return calls_; }
  [[nodiscard]] const call_history& calls() const noexcept { return calls_; }
  /// Sends the peers the call in which this rank waits, for comparison.
  void publish_position(const collective_signature& signature) const noexcept;
  /// Notifies the peers that this rank leaves the group.
  void leave() noexcept;
  /// A rank that left the group.
  struct leaver {
    int rank;
    std::uint64_t calls;      ///< calls that the rank made before it left
    clock::time_point until;  ///< until then the rank may report its reason in the parent group
  };
  /// Returns the first rank that left with fewer calls than this rank has made; null when there is none.
  [[nodiscard]] const leaver* find_leaver() const noexcept;
  /// Returns the entry of a rank that left; null if the rank has not left.
  [[nodiscard]] const leaver* find_left(int rank) const noexcept {
    const auto found =
        std::find_if(leavers_.begin(), leavers_.end(), [rank](const leaver& left) { return left.rank == rank; });
    return found == leavers_.end() ? nullptr : &*found;
  }
  /// Returns the number of ranks that left, and the last of them.
  [[nodiscard]] int left_count() const noexcept { return static_cast<int>(leavers_.size()); }
  [[nodiscard]] const leaver* last_left() const noexcept { return leavers_.empty() ? nullptr : &leavers_.back(); }
  /// Fails the group because that rank left.
  void fail_for_leaver(const leaver& missing) noexcept;
  /// Throws the timeout_error of a call. The error names the ranks that have not reported this call or a later one.
  [[noreturn]] void throw_timeout(const collective_signature& signature, seconds timeout) const;

  /// Handles a control message, which may fail the group.
  void on_control_message(const control_message& message);
  /// Fails the group, once. `follows`: the cause is another rank's, and that rank notifies all members.
  void fail(std::exception_ptr cause, bool follows = false) noexcept;
  /// Fails the group because the caller of this rank requests it; `status` is the exit status that the peers receive.
  void abort(std::string_view reason, int status) noexcept;
  /// Returns the cause of the failure; null while the group has not failed.
  [[nodiscard]] const std::exception_ptr& failure() const noexcept { return failure_; }
  /// Returns true if the cause is another rank's, not this rank's own.
  [[nodiscard]] bool follows() const noexcept { return follows_; }
  /// Waits, after a failure, until every peer has left or has been reported as ended, or until the deadline. Returns
  /// the peers' departures by rank, empty for this rank and for peers that have not reported.
  const std::vector<std::optional<departure>>& await_departures(clock::time_point until) noexcept;

 private:
  void compare_position(int peer, const collective_signature& theirs);
  void notify_all(const control_message& message) const noexcept;
  void notify_end(control_message::kind kind, int status, std::string_view text) const noexcept;

  transport& transport_;
  std::exception_ptr failure_;
  bool follows_ = false;
  std::vector<std::optional<departure>> departures_;
  // in the order in which the ranks left; includes ranks that made as many calls as this rank
  std::vector<leaver> leavers_;
  call_history calls_;
  // by peer: sequence number + 1 of the last collective that the peer has reported; 0: none
  std::vector<std::uint64_t> reported_calls_;
};

inline failure_protocol::failure_protocol(transport& transport)
    : transport_(transport),
      departures_(static_cast<std::size_t>(transport.size())),
      reported_calls_(static_cast<std::size_t>(transport.size()), 0) {}

inline void failure_protocol::throw_timeout(const collective_signature& signature, seconds timeout) const {
  std::vector<int> missing;
  for (int rank = 0; rank < transport_.size(); ++rank) {
    if (rank != transport_.rank() && reported_calls_[static_cast<std::size_t>(rank)] < signature.sequence + 1)
      missing.push_back(rank);
  }
  throw timeout_error(std::string(to_string(signature.kind)), signature.sequence, std::move(missing), timeout.count());
}

inline void failure_protocol::on_control_message(const control_message& message) {
  if (message.type == control_message::kind::position) {
    compare_position(message.origin, message.signature);
    return;
  }
  const bool failed_by_own_cause = message.type == control_message::kind::abort;
  auto& departed = departures_[static_cast<std::size_t>(message.origin)];
  if (!departed) departed = departure{message.status, failed_by_own_cause, message.text};
  if (message.type == control_message::kind::leave) {
    leavers_.push_back({message.origin, message.signature.sequence, clock::now() + group_timing::late_reason});
    return;
  }
  if (message.type ==
      control_message::kind::peer_ended) {  // a dead rank sends nothing itself; the transport reports its end
    fail(std::make_exception_ptr(peer_failure({message.origin}, message.text, message.status)));
    return;
  }
  // a rank that follows another rank is ignored: the rank with the first cause sends an abort too
  if (failure_ || !failed_by_own_cause) return;
  fail(std::make_exception_ptr(peer_failure(
           {message.origin},
           "rank " + std::to_string(message.origin) + " gave up (" + message.text + "); see its own message",
           message.status)),
       true);
}

inline void failure_protocol::compare_position(int peer, const collective_signature& theirs) {
  auto& reached = reported_calls_[static_cast<std::size_t>(peer)];
  reached = std::max(reached, theirs.sequence + 1);
  const auto* const ours = calls_.find(theirs.sequence);
  if (ours == nullptr || *ours == theirs) return;
  fail(std::make_exception_ptr(mismatch_error("the ranks disagree about collective " + std::to_string(theirs.sequence) +
                                              " of the group (this rank called " + describe(*ours) + "; rank " +
                                              std::to_string(peer) + " is in " + describe(theirs) +
                                              "); every rank must make the same calls in the same order")));
}

inline void failure_protocol::publish_position(const collective_signature& signature) const noexcept {
  control_message message;
  message.type = control_message::kind::position;
  message.signature = signature;
  notify_all(message);
}

inline void failure_protocol::leave() noexcept {
  if (failure_) return;  // the peers are notified already
  control_message message;
  message.type = control_message::kind::leave;
  message.signature.sequence = calls_.count();
  notify_all(message);
}

inline const failure_protocol::leaver* failure_protocol::find_leaver() const noexcept {
  const auto found = std::find_if(leavers_.begin(), leavers_.end(),
                                  [this](const leaver& left) { return left.calls < calls_.count(); });
  return found == leavers_.end() ? nullptr : &*found;
}

inline void failure_protocol::fail_for_leaver(const leaver& missing) noexcept {
  const std::string text = "rank " + std::to_string(missing.rank) +
                           " is gone (it left before it finished the group's collectives); see its own message";
  fail(std::make_exception_ptr(peer_failure({missing.rank}, text)));
}

inline void failure_protocol::notify_end(control_message::kind kind, int status, std::string_view text) const noexcept {
  control_message message;
  message.type = kind;
  message.status = status;
  message.set_text(text);
  notify_all(message);
}

inline void failure_protocol::notify_all(const control_message& message) const noexcept {
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer == transport_.rank()) continue;
    try {
      transport_.notify(peer, message);
    } catch (...) {  // a peer that cannot be notified detects the failure by its deadline
    }
  }
}

inline void failure_protocol::fail(std::exception_ptr cause, bool follows) noexcept {
  if (failure_) return;
  failure_ = std::move(cause);
  follows_ = follows;
  const auto kind = follows ? control_message::kind::acknowledge : control_message::kind::abort;
  const int status = exit_status_of(failure_);
  try {
    notify_end(kind, status, describe(failure_));
  } catch (const std::bad_alloc&) {
    notify_end(kind, status, "out of memory");
  }
}

inline void failure_protocol::abort(std::string_view reason, int status) noexcept {
  if (failure_) return;
  try {
    throw peer_failure({transport_.rank()}, "this rank gave up (" + std::string(reason) + ")", status);
  } catch (...) {  // also std::bad_alloc for the text
    failure_ = std::current_exception();
  }
  notify_end(control_message::kind::abort, status, reason);
}

inline const std::vector<std::optional<departure>>& failure_protocol::await_departures(
    clock::time_point until) noexcept {
  const auto all_left = [&] {
    for (int rank = 0; rank < transport_.size(); ++rank) {
      if (rank != transport_.rank() && !departures_[static_cast<std::size_t>(rank)]) return false;
    }
    return true;
  };
  try {
    control_message message;
    for (;;) {
      while (transport_.poll(message)) on_control_message(message);
      if (all_left() || clock::now() >= until) break;
      transport_.pause(until);
    }
  } catch (...) {  // a broken transport delivers no more control messages
  }
  return departures_;
}

}}}  // namespace muster::v0::detail
