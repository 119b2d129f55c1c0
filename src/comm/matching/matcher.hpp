// Which receive a message is for: the receives that wait, and the messages that came before their receives.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <list>
#include <map>
#include <span>
#include <vector>

#include "group.hpp"

namespace muster { inline namespace v0 { namespace detail {

enum class message_kind : std::uint32_t {
  message,  // its bytes follow
  rts,      // it is ready to send, under that number
  cts,      // the message of that number is clear to send: it has a receive
  data      // and here it is
};

/// What a message says of itself before its bytes come.
struct envelope {
  collective_signature signature;
  std::uint64_t total = 0;       // bytes of the message
  std::uint64_t number = 0;      // of one that is announced
  std::uint64_t generation = 0;  // of its group
  std::uint32_t tag = 0;
  message_kind kind = message_kind::message;
};

/// In request::room, of the transports that use a matcher.
struct message_progress {
  enum state : int { waiting, moving, done };  // request::state

  matching_group* group = nullptr;  // null for the rest of what was taken back
  std::uint64_t generation = 0;
  std::uint64_t moved = 0;       // bytes of a send that have gone (shm)
  std::uint64_t number = 0;      // under which it was announced
  std::uint32_t connection = 0;  // of a send: the number of that which it was given to (tcp)
  bool announces = false;        // a send that asks first
  bool has_head = false;         // a send: the receiver has its header (shm)
  bool receives = false;
};
static_assert(sizeof(message_progress) <= sizeof(request::room));
inline message_progress& progress_of(request& r) noexcept { return *reinterpret_cast<message_progress*>(r.room); }

/// It is done, or taken back: the transport touches it no more. The thread that waits may look without a lock.
inline void end(request& r) noexcept {
  r.state = message_progress::done;
  std::atomic_ref<transport*>(r.owner).store(nullptr, std::memory_order_release);
}
/// The same, and its group hears of it.
void finish(request& r) noexcept;

/// The receives of groups that share their connections to peers, and the messages that came for them. How bytes move is
/// the transport's: it shows the matcher what begins to come, is told where to put it, and says when it is there.
///
/// Messages from one peer with one tag go to the receives that want them in order. A message that no receive waits for
/// stays with its transport (`match` says no) until another behind it is waited for; then it is put aside. One that was
/// announced is cleared to send when it has a receive.
///
/// Used by one thread at a time. Nothing is allocated for a message that a receive waits for, but for a number that was
/// announced.
class matcher {
 public:
  /// A message that came before its receive.
  struct unexpected {
    int source;  // a peer
    envelope head;
    std::vector<std::byte> bytes;
    bool has_come = false;   // all of it
    std::uint64_t owed = 0;  // of its sender's credit, until it is taken
    request* to = nullptr;   // a receive that was posted in the meantime

    [[nodiscard]] bool announced() const noexcept { return head.kind == message_kind::rts; }
  };
  /// Where a message goes that is coming: neither of the two after its receive was taken back.
  struct arrival {
    request* to = nullptr;
    unexpected* aside = nullptr;

    /// Memory for what comes at `offset`; null when it goes nowhere or is to be combined.
    [[nodiscard]] std::byte* place(std::uint64_t offset) const noexcept;
    /// Puts the bytes there, or combines them.
    void put(std::uint64_t offset, std::span<const std::byte> bytes) const;
  };

  /// `clear_to_send` tells a peer that the message of that number may come.
  matcher(int peers, std::function<void(int peer, std::uint64_t number)> clear_to_send);
  matcher(const matcher&) = delete;
  matcher& operator=(const matcher&) = delete;

  // Groups.
  void open(matching_group& group) { groups_.push_back(&group); }
  /// What comes for it from now on is dropped; what was announced for it comes and is dropped, too.
  void close(matching_group& group) noexcept;
  [[nodiscard]] matching_group* find(std::uint64_t generation) const noexcept;
  [[nodiscard]] bool is_closed(std::uint64_t generation) const noexcept {
    const auto end = closed_.begin() + std::min(closings_, closed_.size());
    return std::find(closed_.begin(), end, generation) != end;
  }
  [[nodiscard]] const std::vector<matching_group*>& groups() const noexcept { return groups_; }

  // Receives.
  /// A receive begins to wait; a message that was put aside may be its own, whole or in part.
  void post(request& r);
  /// Takes a receive back: what has yet to come of its message goes nowhere.
  void cancel(request& r) noexcept;
  /// Whether anything is waited for from there.
  [[nodiscard]] bool awaits(int source) const noexcept {
    const peer& from = peers_[static_cast<std::size_t>(source)];
    return from.awaited > 0 || awaited_from_any_ > 0 || !from.cleared.empty();
  }
  /// Whether messages from there are cleared that have not begun.
  [[nodiscard]] bool has_cleared(int source) const noexcept {
    return !peers_[static_cast<std::size_t>(source)].cleared.empty();
  }

  // Messages.
  /// Where the one message goes that is coming from there.
  [[nodiscard]] arrival& arrival_of(int source) noexcept { return peers_[static_cast<std::size_t>(source)].coming; }
  /// A message begins to come, or its announcement: sets where it goes. False when it is to stay where it is: no
  /// receive waits for it, nor (unless `must_pass`) for what may come behind it, or when this throws.
  [[nodiscard]] bool match(int source, const envelope& head, bool must_pass, arrival& to);
  /// A message begins to come that was announced. Returns what is wrong with it, null when nothing is.
  [[nodiscard]] const char* match_body(int source, const envelope& head, arrival& to);
  /// All bytes of the message have come to their place, which ends the receive.
  void came(arrival& to);
  /// A message of this process, which is `self` among the peers, to itself.
  void deliver_own(int self, const envelope& head, const request& sent);

  // Peers that are lost.
  /// No more comes from there: what had not come whole is dropped, and ends a receive from any source that had it.
  void lose(int source) noexcept;
  /// Whether the group was told that the peer is gone.
  [[nodiscard]] bool is_gone(int source, std::uint64_t generation) const noexcept;
  /// Drops what the group has not taken of a peer that is gone.
  void forget(int source, std::uint64_t generation) noexcept;

  /// Of the credit of `source`, what was taken since it was repaid.
  [[nodiscard]] std::uint64_t& taken_of(int source) noexcept { return peers_[static_cast<std::size_t>(source)].taken; }

 private:
  struct peer {
    int awaited = 0;          // receives that wait for it
    std::uint64_t taken = 0;  // of its credit
    arrival coming;
    std::map<std::uint64_t, request*> cleared;  // receives by the number of their message; null: taken back
  };

  request* take_posted(matching_group& group, int source, std::uint32_t tag) noexcept;
  bool accept(request& r, int source, const envelope& head) noexcept;
  void clear(int source, std::uint64_t number, request* r);
  void take(std::list<unexpected>::iterator whole, request& r);
  void finish_receive(request& r) noexcept;
  void stop_waiting(request& r) noexcept;
  void break_off(request* r) noexcept;

  std::vector<matching_group*> groups_;
  // The groups that were closed last, by turns. A message of theirs that is still under way is not one of a group to
  // come. Of a group closed longer ago it would be put aside for good: the credit limits that, too.
  std::array<std::uint64_t, 1024> closed_{};
  std::size_t closings_ = 0;
  std::function<void(int, std::uint64_t)> clear_to_send_;
  std::vector<peer> peers_;
  int awaited_from_any_ = 0;
  std::list<unexpected> unexpected_;  // out of the ordinary: it may allocate
};

}}}  // namespace muster::v0::detail
