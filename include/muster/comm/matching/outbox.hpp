// The queue of sends to one peer.
#pragma once

#include <list>
#include <map>
#include <vector>

#include <muster/comm/matching/matcher.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The sends to one peer: the queue of sends with bytes to send, the announced sends that wait for a clear-to-send, and
/// copies of cancelled sends that the peer still expects. The transport moves the bytes.
class outbox {
 public:
  outbox() = default;
  outbox(const outbox&) = delete;
  outbox& operator=(const outbox&) = delete;

  /// Returns the first send that has bytes to send or is to be announced; null when there is none.
  [[nodiscard]] request* front() const noexcept { return queue_.front(); }
  void push(request& req) noexcept { queue_.push(req); }
  /// Removes the first send: all its bytes are passed on.
  void pop() noexcept { queue_.remove(*queue_.front()); }
  /// Records that the first send was announced under that number. The send waits until the peer clears it.
  void announce(std::uint64_t number);
  /// Requeues the announced send with that number, which the peer has cleared. Returns the error of the peer; null when
  /// there is none.
  [[nodiscard]] const char* on_clear_to_send(std::uint64_t number);
  [[nodiscard]] bool awaits_clear() const noexcept { return !announced_.empty(); }
  /// Finishes a send: all its bytes are delivered or passed on.
  void finish(request& req) noexcept;

  /// Copies a cancelled send whose remaining bytes the peer still expects. The copy replaces the original in this
  /// outbox. Returns null when there is no memory for the copy.
  [[nodiscard]] request* adopt(request& req) noexcept;
  [[nodiscard]] bool has_adopted() const noexcept { return !adopted_.empty(); }
  /// Removes a send; its remaining bytes are not sent.
  void drop(const request& req) noexcept;

 private:
  struct copy {
    request r;
    std::vector<std::byte> bytes;
  };

  request_queue queue_;
  std::map<std::uint64_t, request*> announced_;
  std::list<copy> adopted_;  // the rare case: the list may allocate
};

inline void outbox::announce(std::uint64_t number) {
  request& req = *queue_.front();
  announced_.emplace(number, &req);
  progress_of(req).number = number;
  pop();
}

inline const char* outbox::on_clear_to_send(std::uint64_t number) {
  const auto found = announced_.find(number);
  if (found == announced_.end()) return "it sent a clear-to-send for a message that was not announced";
  push(*found->second);
  announced_.erase(found);
  return nullptr;
}

inline void outbox::finish(request& req) noexcept {
  if (progress_of(req).group != nullptr) return detail::finish(req);
  adopted_.remove_if([&](const copy& adopted) { return &adopted.r == &req; });
}

inline request* outbox::adopt(request& req) noexcept {
  std::list<copy> adopted;
  try {
    adopted.emplace_back().bytes.assign(req.data, req.data + req.bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  copy& replacement = adopted.front();
  request& own = replacement.r;
  own.data = replacement.bytes.data();
  own.bytes = req.bytes;
  own.peer = req.peer;
  own.tag = req.tag;
  own.signature = req.signature;
  own.state = req.state;
  ::new (own.transport_storage) message_progress(progress_of(req));
  progress_of(own).group = nullptr;
  queue_.replace(req, own);
  for (auto& entry : announced_) {
    if (entry.second == &req) entry.second = &own;
  }
  adopted_.splice(adopted_.end(), adopted);
  return &own;
}

inline void outbox::drop(const request& req) noexcept {
  queue_.remove(req);
  std::erase_if(announced_, [&](const auto& entry) { return entry.second == &req; });
}

}}}  // namespace muster::v0::detail
