#include "failure_protocol.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include <muster/core/error.hpp>

#include "../comm_timing.hpp"

namespace muster { inline namespace v0 { namespace detail {

failure_protocol::failure_protocol(transport& transport)
    : transport_(transport),
      departures_(static_cast<std::size_t>(transport.size())),
      reported_calls_(static_cast<std::size_t>(transport.size()), 0) {}

void failure_protocol::throw_timeout(const collective_signature& signature, seconds timeout) const {
  std::vector<int> missing;
  for (int rank = 0; rank < transport_.size(); ++rank) {
    if (rank != transport_.rank() && reported_calls_[static_cast<std::size_t>(rank)] < signature.sequence + 1)
      missing.push_back(rank);
  }
  throw timeout_error(std::string(to_string(signature.kind)), signature.sequence, std::move(missing), timeout.count());
}

void failure_protocol::on_control_message(const control_message& message) {
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

void failure_protocol::compare_position(int peer, const collective_signature& theirs) {
  auto& reached = reported_calls_[static_cast<std::size_t>(peer)];
  reached = std::max(reached, theirs.sequence + 1);
  const auto* const ours = calls_.find(theirs.sequence);
  if (ours == nullptr || *ours == theirs) return;
  fail(std::make_exception_ptr(mismatch_error("the ranks disagree about collective " + std::to_string(theirs.sequence) +
                                              " of the group (this rank called " + describe(*ours) + "; rank " +
                                              std::to_string(peer) + " is in " + describe(theirs) +
                                              "); every rank must make the same calls in the same order")));
}

void failure_protocol::publish_position(const collective_signature& signature) const noexcept {
  control_message message;
  message.type = control_message::kind::position;
  message.signature = signature;
  notify_all(message);
}

void failure_protocol::leave() noexcept {
  if (failure_) return;  // the peers are notified already
  control_message message;
  message.type = control_message::kind::leave;
  message.signature.sequence = calls_.count();
  notify_all(message);
}

const failure_protocol::leaver* failure_protocol::find_leaver() const noexcept {
  const auto found = std::find_if(leavers_.begin(), leavers_.end(),
                                  [this](const leaver& left) { return left.calls < calls_.count(); });
  return found == leavers_.end() ? nullptr : &*found;
}

void failure_protocol::fail_for_leaver(const leaver& missing) noexcept {
  const std::string text = "rank " + std::to_string(missing.rank) +
                           " is gone (it left before it finished the group's collectives); see its own message";
  fail(std::make_exception_ptr(peer_failure({missing.rank}, text)));
}

void failure_protocol::notify_end(control_message::kind kind, int status, std::string_view text) const noexcept {
  control_message message;
  message.type = kind;
  message.status = status;
  message.set_text(text);
  notify_all(message);
}

void failure_protocol::notify_all(const control_message& message) const noexcept {
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer == transport_.rank()) continue;
    try {
      transport_.notify(peer, message);
    } catch (...) {  // a peer that cannot be notified detects the failure by its deadline
    }
  }
}

void failure_protocol::fail(std::exception_ptr cause, bool follows) noexcept {
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

void failure_protocol::abort(std::string_view reason, int status) noexcept {
  if (failure_) return;
  try {
    throw peer_failure({transport_.rank()}, "this rank gave up (" + std::string(reason) + ")", status);
  } catch (...) {  // also std::bad_alloc for the text
    failure_ = std::current_exception();
  }
  notify_end(control_message::kind::abort, status, reason);
}

const std::vector<std::optional<departure>>& failure_protocol::await_departures(clock::time_point until) noexcept {
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
