// Messages between the ranks of a group, through rings of bytes in their slots.
#pragma once

#include <vector>

#include "../../matching/outbox.hpp"
#include "shm_group.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Sends copy into the ring as there is room, receives take out (or combine) as data comes: a message larger than the
/// ring is a pipeline through memory that stays in cache. No rank looks into the memory of another, so a request
/// can be taken back at any time.
///
/// A message that no receive waits for stays in the ring, and its sender waits, until another behind it is waited for.
/// A large tagged one is announced, and comes when it has a receive: so what is put aside is small, and nothing waits
/// behind what no rank takes.
class shm_messages {
 public:
  /// Tagged messages up to this come unasked.
  static constexpr std::size_t eager = std::size_t{64} << 10;
  /// In front of every message, and nothing crosses the end of the ring but payload.
  struct alignas(cache_line) header : envelope {};
  static_assert(sizeof(header) == cache_line);

  explicit shm_messages(shm_group& shm);

  void send(request& r, transport& owner);
  void receive(request& r, transport& owner);
  bool test(request& r) {
    move();
    if (group_.failure) std::rethrow_exception(std::exchange(group_.failure, nullptr));
    return r.owner == nullptr;
  }
  /// Whether there may be something to move that no request of this rank stands for any more.
  [[nodiscard]] bool owes() const noexcept { return owes_; }
  /// All that is under way.
  void move();
  void cancel(request& r) noexcept;

 private:
  struct outgoing {
    outbox sends;
    std::vector<std::uint64_t> clears;  // numbers to be cleared to send: they go between messages
    std::uint64_t announcements = 0;
  };
  struct incoming {
    bool open = false;  // in the middle of a message
    std::uint64_t total = 0;
    std::uint64_t moved = 0;
  };

  outgoing& to(int peer) noexcept { return out_[static_cast<std::size_t>(peer)]; }
  void pump_out(int peer);
  bool push(int peer, const std::byte* data, std::uint64_t bytes, std::uint64_t& moved);
  bool push(int peer, const envelope& head);
  bool begin_sending(int peer, request& r);
  void sever(int peer) noexcept;
  [[nodiscard]] std::uint64_t unread(int peer);
  [[noreturn]] void break_off(int peer, const char* what) const;
  void require(int peer, const char* fault) const;
  void pump_in(int peer);
  bool begin_message(int peer, incoming& in);
  void take(int peer, incoming& in);

  shm_group& shm_;
  matching_group group_;
  matcher matcher_;
  std::vector<outgoing> out_;
  std::vector<incoming> in_;
  bool owes_ = false;
};

}}}  // namespace muster::v0::detail
