// Matches messages with receives: holds the posted receives and the unexpected messages.
//
// Protocol of a message. A small message is eager: its sender sends `message`, the header and then the bytes. A large
// message is announced: its sender sends `rts` (ready to send) with a number, the receiver replies with `cts` (clear to
// send) and the number as soon as a matching receive is posted, and then the sender sends `data`, the number and the
// bytes. An eager message that has no receive either stays in the transport (`matcher::match` returns false, and flow
// control stops the sender) or is copied into `matcher::unexpected`, when a receive waits for a later message of the
// same peer. Invariant: messages from one peer with one tag are matched in the order in which they were sent.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <list>
#include <map>
#include <span>
#include <vector>

#include <muster/comm/matching/matching_group.hpp>

namespace muster { inline namespace v0 { namespace detail {

enum class message_kind : std::uint32_t {
  message,  // an eager message; the bytes follow
  rts,      // the sender announces a large message and its number
  cts,      // the receiver has a receive for the message with that number
  data      // the bytes of an announced message
};

/// The header of a message, which arrives before the bytes.
struct envelope {
  collective_signature signature;
  std::uint64_t total = 0;     // bytes of the message
  std::uint64_t number = 0;    // number of an announced message
  std::uint64_t group_id = 0;  // generation of the message's group
  std::uint32_t tag = 0;
  message_kind kind = message_kind::message;
};

/// The state of a send or receive, stored in `request::transport_storage` by the transports that use a matcher.
struct message_progress {
  enum state : int { waiting, moving, done };  // values of `request::state`

  matching_group* group = nullptr;  // null for a copy of a cancelled send, see `outbox::adopt`
  std::uint64_t group_id = 0;       // generation of the group, also when `group` is null (tcp)
  std::uint64_t moved = 0;          // bytes of a send that are sent already (shm)
  std::uint64_t number = 0;         // number under which the send was announced
  std::uint32_t connection = 0;     // number of the connection that holds the send (tcp)
  bool announces = false;           // true for a send that is announced with `rts`
  bool has_head = false;            // true when the receiver of a send has the header (shm)
  bool receives = false;
};
static_assert(sizeof(message_progress) <= sizeof(request::transport_storage));
inline message_progress& progress_of(request& req) noexcept {
  return *reinterpret_cast<message_progress*>(req.transport_storage);
}

/// Ends a request, done or cancelled: the transport does not touch the request any more. The waiting thread may test
/// `owner` without a lock.
inline void end(request& req) noexcept {
  req.state = message_progress::done;
  std::atomic_ref<transport*>(req.owner).store(nullptr, std::memory_order_release);
}
/// Ends a request and wakes the group's thread.
void finish(request& req) noexcept;

/// The posted receives and unexpected messages for all groups that share a process's connections to its peers. The
/// transport moves the bytes: the transport reports the header of an arriving message (`match`, `match_body`), the
/// matcher returns the target of the bytes, and the transport reports the last byte.
///
/// Messages from one peer with one tag are matched in order. A message without a receive stays in the transport
/// (`match` returns false) until a receive waits for a later message; then the message is copied into an `unexpected`.
/// An announced message is cleared to send as soon as it has a receive.
///
/// Used by one thread at a time. A message that already has a receive allocates nothing, except an entry for the number
/// of an announced message.
class matcher {
 public:
  /// A message that arrived before its receive was posted.
  struct unexpected {
    int source;  // the sending peer
    envelope head;
    std::vector<std::byte> bytes;
    bool is_complete = false;       // true when all bytes have arrived
    std::uint64_t credit_owed = 0;  // bytes of the sender's credit that are repaid when a receive takes the message
    request* receive = nullptr;     // a receive that was posted while the message was still arriving
    std::uint64_t order = 0;        // its place among all unexpected messages

    [[nodiscard]] bool announced() const noexcept { return head.kind == message_kind::rts; }
  };
  /// The target of an arriving message's bytes: a receive or an unexpected message. Both pointers are null for bytes
  /// that are dropped, for instance after the receive was cancelled.
  struct inbound_target {
    request* receive = nullptr;
    unexpected* unexpected_message = nullptr;

    /// Returns the memory for the bytes at `offset`; null when the bytes are dropped or combined.
    [[nodiscard]] std::byte* place(std::uint64_t offset) const noexcept;
    /// Copies the bytes to the target, or combines them.
    void put(std::uint64_t offset, std::span<const std::byte> bytes) const;
  };

  /// `clear_to_send` sends a peer the clear-to-send for the message with that number.
  matcher(int peers, std::function<void(int peer, std::uint64_t number)> clear_to_send);
  matcher(const matcher&) = delete;
  matcher& operator=(const matcher&) = delete;

  void open(matching_group& group) { groups_.push_back(&group); }
  /// Removes a group. Later messages for the group are dropped. Announced messages of the group are cleared to send,
  /// and dropped when they arrive.
  void close(matching_group& group) noexcept;
  /// Returns the open group of that generation; null when there is none.
  [[nodiscard]] matching_group* find(std::uint64_t generation) const noexcept;
  [[nodiscard]] bool is_closed(std::uint64_t generation) const noexcept {
    const auto end = closed_.begin() + std::min(closings_, closed_.size());
    return std::find(closed_.begin(), end, generation) != end;
  }
  [[nodiscard]] const std::vector<matching_group*>& groups() const noexcept { return groups_; }

  /// Posts a receive, which may match an unexpected message that has arrived completely or in part.
  void post(request& req);
  /// Cancels a receive. Bytes of its message that arrive later are dropped; an unexpected message stays for another
  /// receive.
  void cancel(request& req) noexcept;
  /// Returns true if a receive for that peer or for any source is not done, or if the peer has a message that is
  /// cleared to send.
  [[nodiscard]] bool awaits(int sender_rank) const noexcept {
    const peer& sender = peers_[static_cast<std::size_t>(sender_rank)];
    return sender.awaited > 0 || awaited_from_any_ > 0 || !sender.cleared.empty();
  }
  /// Returns true if that peer has messages that are cleared to send and have not started to arrive.
  [[nodiscard]] bool has_cleared(int sender_rank) const noexcept {
    return !peers_[static_cast<std::size_t>(sender_rank)].cleared.empty();
  }

  /// Returns the target of the message that is arriving from that peer; there is at most one such message.
  [[nodiscard]] inbound_target& target_of(int sender_rank) noexcept {
    return peers_[static_cast<std::size_t>(sender_rank)].arriving;
  }
  /// Matches the header of an eager or announced message, and sets the target of the bytes. Returns false when the
  /// message is to stay in the transport: no receive waits for the message or for a later message. With `must_accept`
  /// the message cannot stay, and becomes an unexpected message. The message also stays when this throws.
  [[nodiscard]] bool match(int sender_rank, const envelope& head, bool must_accept, inbound_target& target);
  /// Matches the header of the `data` of an announced message, and sets the target. Returns the error in the header;
  /// null when the header is correct.
  [[nodiscard]] const char* match_body(int sender_rank, const envelope& head, inbound_target& target);
  /// Completes a message whose bytes have all arrived, which finishes the receive.
  void on_complete(inbound_target& target);
  /// Delivers a message from this process, peer `self`, to itself.
  void deliver_own(int self, const envelope& head, const request& sent);

  /// Handles the loss of a peer: drops the peer's incomplete messages. A receive from any source that was matched with
  /// such a message finishes with `received` 0.
  void on_peer_lost(int sender_rank) noexcept;
  /// Returns true if the group was notified that the peer is gone.
  [[nodiscard]] bool is_gone(int sender_rank, std::uint64_t generation) const noexcept;
  /// Drops the unexpected messages that a lost peer sent to the group.
  void drop_unexpected_of(int sender_rank, std::uint64_t generation) noexcept;

  /// Returns the consumed credit of `sender_rank` in bytes, for messages that receives have taken since credit was last
  /// repaid. The transport adds to the value and resets it.
  [[nodiscard]] std::uint64_t& consumed_credits(int sender_rank) noexcept {
    return peers_[static_cast<std::size_t>(sender_rank)].credit_taken;
  }

 private:
  struct peer {
    int awaited = 0;                            // receives for this peer that are not done
    std::uint64_t credit_taken = 0;             // bytes of credit to repay to this peer
    inbound_target arriving;                    // target of the message that is arriving
    std::map<std::uint64_t, request*> cleared;  // receives by the number of their announced message; null: cancelled
  };

  // Finishes a receive that only looks for a message: the message of `head` from `member` is there.
  void finish_peek(request& req, int member, const envelope& head) noexcept;
  // Finishes the posted receives that only look for a message, if they fit the message, which no receive takes.
  void finish_peeks(matching_group& group, int sender_rank, const envelope& head) noexcept;
  // Removes and returns the first posted receive for a message from `sender_rank`; null when there is none.
  request* take_posted(matching_group& group, int sender_rank, std::uint32_t tag) noexcept;
  bool accept(request& req, int sender_rank, const envelope& head) noexcept;
  void send_clearance(int sender_rank, std::uint64_t number, request* req);
  void deliver_unexpected(unexpected& message, request& req);
  // Returns the first unexpected message for a receive; null when there is none.
  unexpected* find_unexpected(const request& req) noexcept;
  void remove_unexpected(const unexpected& message) noexcept;
  // Removes the unexpected messages for which `is_removed` is true.
  template <class Test>
  void remove_unexpected_if(Test is_removed) noexcept;
  void finish_receive(request& req) noexcept;
  void stop_waiting(request& req) noexcept;
  void finish_without_data(request* req) noexcept;

  std::vector<matching_group*> groups_;
  // Ring buffer of the generations of the last 1024 closed groups. It distinguishes late messages of a closed group,
  // which are dropped, from messages of a group that this process has not opened yet. A late message of a group that
  // was closed earlier than these stays in `unexpected_`; the credit limits the memory.
  std::array<std::uint64_t, 1024> closed_{};
  std::size_t closings_ = 0;
  std::function<void(int, std::uint64_t)> clear_to_send_;
  std::vector<peer> peers_;
  int awaited_from_any_ = 0;
  struct message_key {
    std::uint64_t group_id;
    int source;
    std::uint32_t tag;
    friend auto operator<=>(const message_key&, const message_key&) = default;
  };
  std::map<message_key, std::list<unexpected>> unexpected_;  // the rare case: the lists may allocate
  std::uint64_t unexpected_count_ = 0;                       // of all that have arrived
};

}}}  // namespace muster::v0::detail

#include <muster/comm/matching/detail/matcher-inl.hpp>
