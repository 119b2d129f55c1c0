// The queue of sends to one peer.
#pragma once

#include <list>
#include <map>
#include <vector>

#include "matcher.hpp"

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

}}}  // namespace muster::v0::detail
