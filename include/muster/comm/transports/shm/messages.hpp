// Messages between the ranks of a group, through the rings of bytes in their slots (`fifo`).
#pragma once

#include <vector>

#include <muster/comm/matching/outbox.hpp>
#include <muster/comm/transports/shm/shm_group.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Sends copy into the ring while it has room, and receives copy (or combine) bytes out while they arrive. A message
/// that is larger than the ring is a pipeline through memory that stays in cache. No rank accesses the user's buffer of
/// a peer, so a request can be cancelled at any time.
///
/// A message for which no receive is posted stays in the ring, and its sender waits. If a receive waits for another
/// message of the same peer, the message is copied out of the ring (unexpected). A large tagged message is announced
/// (rendezvous) and sent when its receive is posted. So the unexpected messages are small, and no message with a posted
/// receive waits behind a message without one.
class shm_messages {
 public:
  /// Largest tagged message, in bytes, that is sent without an announcement.
  static constexpr std::size_t eager = std::size_t{64} << 10;
  /// The header before every message. Only a payload may cross the end of the ring.
  struct alignas(cache_line) header : envelope {};
  static_assert(sizeof(header) == cache_line);

  explicit shm_messages(shm_group& shm);

  void send(request& req, transport& owner);
  void receive(request& req, transport& owner);
  bool test(request& req) {
    if (req.owner != nullptr) progress();
    if (group_.failure) std::rethrow_exception(std::exchange(group_.failure, nullptr));
    return req.owner == nullptr;
  }
  /// Returns true if a message may be unfinished that no request represents any more.
  [[nodiscard]] bool has_unfinished() const noexcept { return has_unfinished_; }
  /// Advances all messages that are under way.
  void progress();
  void cancel(request& req) noexcept;

 private:
  struct outgoing {
    outbox sends;
    // numbers of the peer's announced messages that this rank clears to send; sent as headers between messages
    std::vector<std::uint64_t> clear_to_send;
    std::uint64_t announcements = 0;
  };
  struct incoming {
    bool open = false;  // set while a message is partly received
    std::uint64_t total = 0;
    std::uint64_t moved = 0;
  };

  outgoing& outgoing_to(int peer) noexcept { return out_[static_cast<std::size_t>(peer)]; }
  void send_pending(int peer);
  bool push(int peer, const std::byte* data, std::uint64_t bytes, std::uint64_t& moved);
  bool push(int peer, const envelope& head);
  bool begin_sending(int peer, request& req);
  void sever(int peer) noexcept;
  [[nodiscard]] std::uint64_t unread(int peer);
  // Throws peer_failure: no more messages arrive from the peer.
  [[noreturn]] void throw_broken(int peer, const char* reason) const;
  // Does the same with the reason `fault`, unless it is null.
  void throw_if_broken(int peer, const char* fault) const;
  void receive_pending(int peer);
  bool begin_message(int peer, incoming& in);
  void copy_payload(int peer, incoming& in);

  shm_group& shm_;
  matching_group group_;
  matcher matcher_;
  std::vector<outgoing> out_;
  std::vector<incoming> in_;
  // Marks of the senders whose rings may hold unread bytes (`shm_group::arrival_bit`), if senders mark arrivals.
  std::uint64_t unread_peers_ = 0;
  bool has_unfinished_ = false;
};

}}}  // namespace muster::v0::detail
