#include "message_port.hpp"

#include <sched.h>

#include <algorithm>
#include <string>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace detail {
namespace {

// The time in which messages that a rank sent before its end still arrive.
constexpr seconds time_to_arrive{0.5};
constexpr seconds longest_pause{0.001};
constexpr int turns_before_pause = 200;

std::string described(bool is_send, int peer) {
  const std::string rank = peer == any_source ? std::string("any rank") : "rank " + std::to_string(peer);
  return (is_send ? "send to " : "receive from ") + rank;
}

}  // namespace

port_message::~port_message() {
  if (port_ == nullptr) return;
  const std::lock_guard lock(port_->mutex_);
  if (is_done_) return;
  if (auto* const owner = request_.owning_transport(); owner != nullptr) owner->cancel(request_);
  std::erase(port_->open_, this);
}

message_port::message_port(group&& ranks)
    : ranks_(std::move(ranks)), ended_(static_cast<std::size_t>(ranks_.size()), clock::time_point::max()) {}

message_port::~message_port() {
  const std::lock_guard lock(mutex_);
  for (auto* const message : open_) {
    if (auto* const owner = message->request_.owning_transport(); owner != nullptr) owner->cancel(message->request_);
    message->port_ = nullptr;
  }
}

std::unique_ptr<port_message> message_port::send(const void* data, std::size_t bytes, int peer, std::uint32_t tag,
                                                 seconds timeout) {
  std::unique_ptr<port_message> message(new port_message());
  message->is_send_ = true;
  message->request_.data = static_cast<std::byte*>(const_cast<void*>(data));
  message->request_.bytes = bytes;
  message->request_.peer = peer;
  message->timeout_ = timeout;
  start(*message, tag);
  return message;
}

std::unique_ptr<port_message> message_port::receive(void* data, std::size_t bytes, std::optional<int> peer,
                                                    std::uint32_t tag, seconds timeout) {
  std::unique_ptr<port_message> message(new port_message());
  message->request_.data = static_cast<std::byte*>(data);
  message->request_.bytes = bytes;
  message->request_.peer = peer.value_or(any_source);
  message->timeout_ = timeout;
  start(*message, tag);
  return message;
}

void message_port::start(port_message& message, std::uint32_t tag) {
  const int peer = message.request_.peer;
  if (peer != any_source && (peer < 0 || peer >= ranks_.size() || peer == ranks_.rank())) {
    throw configuration_error(described(message.is_send_, peer) + " cannot be (this is rank " +
                              std::to_string(ranks_.rank()) + " of " + std::to_string(ranks_.size()) +
                              "); choose another rank of the group");
  }
  if (tag > first_reserved_tag) {
    throw configuration_error("a tag cannot be " + std::to_string(tag) + " (tags are up to " +
                              std::to_string(first_reserved_tag) + "); choose a smaller tag");
  }
  if (peer == any_source && !ranks_.abilities().any_source) {
    throw configuration_error("a message cannot be received from any rank over " +
                              std::string(ranks_.abilities().name) + " (it has no such receive); name the rank");
  }
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  message.port_ = this;
  message.request_.tag = tag + 1;  // 0 is for collectives
  message.deadline_ = deadline_after(message.timeout_);
  if (message.is_send_)
    ranks_.transport().send(message.request_);
  else
    ranks_.transport().receive(message.request_);
  open_.push_back(&message);
  (void)advance(message);
}

void message_port::end(port_message& message, std::exception_ptr failure) noexcept {
  if (auto* const owner = message.request_.owning_transport(); owner != nullptr) owner->cancel(message.request_);
  message.failure_ = std::move(failure);
  message.is_done_ = true;
  std::erase(open_, &message);
}

// Advances the message, and with it all others. Returns true when it is done. The mutex is held.
bool message_port::advance(port_message& message) {
  if (message.is_done_) return true;
  try {
    if (!ranks_.transport().test(message.request_)) return false;
  } catch (...) {
    end(message, std::current_exception());
    return true;
  }
  const request& got = message.request_;
  if (!message.is_send_ && got.received != got.bytes) {
    end(message, std::make_exception_ptr(mismatch_error(
                     described(false, got.source) + ": " + std::to_string(got.received) + " bytes arrived and " +
                     std::to_string(got.bytes) +
                     " were expected (the ranks disagree about the message); pass buffers of the same size")));
  } else {
    end(message, nullptr);
  }
  return true;
}

void message_port::read_control() {
  control_message control;
  while (ranks_.transport().poll(control)) {
    const auto rank = static_cast<std::size_t>(control.origin);
    const bool is_end = control.type == control_message::kind::peer_ended || control.reports_failure() ||
                        control.type == control_message::kind::leave;
    if (is_end && rank < ended_.size()) ended_[rank] = std::min(ended_[rank], deadline_after(time_to_arrive));
  }
  check_peers();
}

void message_port::check_peers() {
  const auto now = clock::now();
  for (std::size_t k = open_.size(); k-- > 0;) {
    port_message& message = *open_[k];
    const int peer = message.request_.peer;
    const bool all_ended = std::count_if(ended_.begin(), ended_.end(), [&](auto at) { return at <= now; }) + 1 >=
                           static_cast<std::ptrdiff_t>(ended_.size());
    const bool is_lost = peer == any_source ? all_ended : ended_[static_cast<std::size_t>(peer)] <= now;
    if (is_lost) {
      std::vector<int> lost;
      for (std::size_t r = 0; r < ended_.size(); ++r) {
        if (ended_[r] <= now) lost.push_back(static_cast<int>(r));
      }
      end(message, std::make_exception_ptr(peer_failure(lost, described(message.is_send_, peer) +
                                                                  " cannot complete (rank " + format_ranks(lost) +
                                                                  " has ended or left); see what that rank reports")));
    } else if (now >= message.deadline_) {
      const std::vector<int> missing = peer == any_source ? std::vector<int>() : std::vector<int>{peer};
      end(message, std::make_exception_ptr(timeout_error(
                       message.is_send_ ? "send" : "receive", missing,
                       described(message.is_send_, peer) + " timed out after " +
                           std::to_string(static_cast<long>(message.timeout_.count() * 1000)) +
                           "ms (the other side has not called it); look at the other rank, or raise the timeout")));
    }
  }
}

bool message_port::test(port_message& message) {
  const std::lock_guard lock(mutex_);
  if (!advance(message)) read_control();
  if (!message.is_done_) return false;
  if (message.failure_) std::rethrow_exception(message.failure_);
  return true;
}

bool message_port::wait_until(port_message& message, clock::time_point limit) {
  for (int turn = 0; !test(message); ++turn) {
    if (turn < turns_before_pause) {
      if (turn % 16 == 15) sched_yield();
      continue;
    }
    const auto now = clock::now();
    if (now >= limit) return false;
    const std::lock_guard lock(mutex_);
    if (!message.is_done_) ranks_.transport().pause(std::min(limit, deadline_after(longest_pause)));
  }
  return true;
}

void message_port::fail(std::exception_ptr cause) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = cause;
  while (!open_.empty()) end(*open_.back(), cause);
}

}}}  // namespace muster::v0::detail
