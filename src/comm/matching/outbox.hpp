// The sends to one peer.
#pragma once

#include <list>
#include <map>
#include <vector>

#include "matcher.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// The sends to one peer: in their order, those that were announced, and those that go on although they were taken
/// back. How their bytes move is the transport's.
class outbox {
 public:
  outbox() = default;
  outbox(const outbox&) = delete;
  outbox& operator=(const outbox&) = delete;

  /// What has bytes to send, or is to be announced; null when nothing has.
  [[nodiscard]] request* front() const noexcept { return queue_.front(); }
  void push(request& r) noexcept { queue_.push(r); }
  /// All of the first is under way.
  void pop() noexcept { queue_.remove(*queue_.front()); }
  /// The first was announced under that number, and waits until it is cleared.
  void announce(std::uint64_t number);
  /// What was announced is clear to send. Returns what is wrong with that, null when nothing is.
  [[nodiscard]] const char* clear(std::uint64_t number);
  [[nodiscard]] bool awaits_clear() const noexcept { return !announced_.empty(); }
  /// All of it is with the peer, or on the way.
  void finish(request& r) noexcept;

  /// What is taken back while the peer counts on the rest: a copy of it, which takes its place everywhere here. Null
  /// when there is no memory for that.
  [[nodiscard]] request* adopt(request& r) noexcept;
  [[nodiscard]] bool has_adopted() const noexcept { return !adopted_.empty(); }
  /// Nothing of it goes any more.
  void drop(const request& r) noexcept;

 private:
  struct copy {
    request r;
    std::vector<std::byte> bytes;
  };

  request_queue queue_;
  std::map<std::uint64_t, request*> announced_;
  std::list<copy> adopted_;  // out of the ordinary: it may allocate
};

}}}  // namespace muster::v0::detail
