// A queue of requests, linked through the requests themselves, in which transports store unfinished sends and receives.
#pragma once

#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Requests in the order in which they were pushed, linked through `request::next`: no operation allocates. A request
/// is in one queue at most.
class request_queue {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  /// Returns the first request; null when there is none.
  [[nodiscard]] request* front() const noexcept { return first_; }
  [[nodiscard]] bool contains(const request& req) const noexcept {
    const request* current = first_;
    while (current != nullptr && current != &req) current = current->next;
    return current != nullptr;
  }
  void push(request& req) noexcept {
    req.next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = &req;
    last_ = &req;
  }
  /// Returns the first request for which `fits` is true; null when there is none.
  template <class Fits>
  [[nodiscard]] request* find_first(Fits fits) const noexcept {
    request* current = first_;
    while (current != nullptr && !fits(*current)) current = current->next;
    return current;
  }
  /// Removes the first request for which `fits` is true; returns null when there is none.
  template <class Fits>
  request* take_first(Fits fits) noexcept {
    request* before = nullptr;
    for (request* current = first_; current != nullptr; before = current, current = current->next) {
      if (!fits(*current)) continue;
      (before == nullptr ? first_ : before->next) = current->next;
      if (last_ == current) last_ = before;
      return current;
    }
    return nullptr;
  }
  /// Removes a request; returns false when it is not in the queue.
  bool remove(const request& req) noexcept {
    return take_first([&](const request& queued) { return &queued == &req; }) != nullptr;
  }
  /// Replaces `req` by `replacement` in the same position, if `req` is in the queue.
  void replace(const request& req, request& replacement) noexcept {
    request* before = nullptr;
    for (request* current = first_; current != nullptr; before = current, current = current->next) {
      if (current != &req) continue;
      replacement.next = current->next;
      (before == nullptr ? first_ : before->next) = &replacement;
      if (last_ == current) last_ = &replacement;
      return;
    }
  }

 private:
  request* first_ = nullptr;
  request* last_ = nullptr;
};

/// Returns true if the receive `req` takes a message with that tag from that rank in the group.
[[nodiscard]] inline bool matches(const request& req, int sender, std::uint32_t tag) noexcept {
  return req.tag == tag && (req.peer == sender || req.peer == any_source);
}

}}}  // namespace muster::v0::detail
