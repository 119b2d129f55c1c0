// Who a message is for: the receives that wait, and the messages that came before anybody waited.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <vector>

#include "../../core/descriptor.hpp"
#include "frame.hpp"

namespace muster::inline v0::detail {

/// What one group keeps of the connections that it shares with others. Its ranks are the group's, those of links the
/// world's.
class tcp_channel {
 public:
  /// `members` are ranks of the world, `rank` this one's place among them.
  tcp_channel(std::uint64_t generation, std::vector<int> members, int rank, int world_size);
  tcp_channel(const tcp_channel&) = delete;
  tcp_channel& operator=(const tcp_channel&) = delete;

  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int world_rank(int member) const noexcept { return members_[static_cast<std::size_t>(member)]; }
  /// -1 for who is not in the group.
  [[nodiscard]] int member(int world_rank) const noexcept { return member_of_[static_cast<std::size_t>(world_rank)]; }

  /// By any thread: gives the group a notice.
  void tell(const notice& message);
  /// The oldest; false when there is none. Costs one load then.
  [[nodiscard]] bool hear(notice& message);
  [[nodiscard]] std::uint32_t news() const noexcept { return news_count_.load(); }

  /// By any thread: ends the pause of the one that works with the group.
  void wake() noexcept;
  [[nodiscard]] int wake_file() const noexcept { return wake_.get(); }
  void set_asleep(bool yes) noexcept;

  // Below: with the mesh held.
  request* posted_first = nullptr;  // receives in the order they were started
  request* posted_last = nullptr;
  std::exception_ptr failure;                                     // of a receive: thrown by the next test
  std::uint64_t called = 0;                                       // collectives of the group that this rank has begun
  std::uint64_t finished = 0;                                     // requests that were, by any thread
  std::uint64_t looked = 0;                                       // how many that were at the last test
  enum class fate : std::uint8_t { here, said_gone, seen_gone };  // by another rank, by this one
  std::vector<fate> fates;                                        // by member: what was told
  [[nodiscard]] bool has_lost(int member) const noexcept {
    return member >= 0 && fates[static_cast<std::size_t>(member)] == fate::seen_gone;
  }

 private:
  std::uint64_t generation_;
  std::vector<int> members_;
  std::vector<int> member_of_;
  int rank_;
  descriptor wake_;
  std::atomic<bool> asleep_{false};
  std::mutex news_mutex_;
  std::deque<notice> news_;
  std::atomic<std::uint32_t> news_count_{0};
};

/// In request::room.
struct tcp_progress {
  enum state : int { waiting, moving, done };  // request::state

  tcp_channel* channel;  // null for the rest of what was taken back
  std::uint64_t generation;
  std::uint64_t moved;       // bytes that have come, or that frames were begun for
  std::uint64_t written;     // bytes of a send that the system has
  std::uint64_t number;      // under which it was announced
  std::uint32_t connection;  // of a send: the number of that which it was given to
  bool announces;            // a send that asks first
  bool receives;
};
static_assert(sizeof(tcp_progress) <= sizeof(request::room));
inline tcp_progress& progress_of(request& r) { return *reinterpret_cast<tcp_progress*>(r.room); }

/// It is done, or taken back: nobody here touches it any more. Who waits may look without a lock.
inline void end(request& r) noexcept {
  r.state = tcp_progress::done;
  std::atomic_ref<transport*>(r.owner).store(nullptr, std::memory_order_release);
}

/// Appends to a list of requests.
void append(request*& first, request*& last, request& r) noexcept;
/// Takes it out; false when it is not in.
bool unlink(request*& first, request*& last, const request& r) noexcept;

/// The receives of all groups of a process and what came for them. Used with the mesh held.
class tcp_inbox {
 public:
  /// A message that nobody waited for when it came.
  struct stray {
    int source;  // of the world
    frame head;
    std::vector<std::byte> bytes;
    std::uint64_t come = 0;
    std::uint64_t owed = 0;  // of its sender's credit, until it is taken
    request* to = nullptr;   // a receive that was started in the meantime

    [[nodiscard]] bool announced() const noexcept { return head.kind == frame_kind::announce; }
    [[nodiscard]] bool complete() const noexcept { return !announced() && come == head.total; }
  };
  /// Where a message goes that is coming: neither of the two for one whose receive was taken back.
  struct arrival {
    request* to = nullptr;
    stray* aside = nullptr;
  };
  enum class verdict { taken, held, dropped };

  explicit tcp_inbox(int world_size)
      : awaited_(static_cast<std::size_t>(world_size), 0), taken_(static_cast<std::size_t>(world_size), 0) {}

  void open(tcp_channel& group);
  /// What comes for it from now on is dropped. Links must have let go of its strays before.
  void close(tcp_channel& group);
  [[nodiscard]] tcp_channel* find(std::uint64_t generation) const noexcept;
  [[nodiscard]] bool is_closed(std::uint64_t generation) const noexcept {
    const auto end = closed_.begin() + std::min(closings_, closed_.size());
    return std::find(closed_.begin(), end, generation) != end;
  }
  [[nodiscard]] const std::vector<tcp_channel*>& channels() const noexcept { return channels_; }

  /// A receive begins to wait. When a message that was put aside is its own it has it at once, except one that was only
  /// announced: then that is returned and the message is to be cleared and `release`d.
  [[nodiscard]] stray* post(request& r);
  /// Whether anybody waits for that rank of the world.
  [[nodiscard]] bool awaits(int source) const noexcept {
    return awaited_[static_cast<std::size_t>(source)] > 0 || awaited_from_any_ > 0;
  }
  /// Finds who the message of `head` is for, or of its announcement. `held`: no receive waits for it, nor (unless
  /// `must_pass`) for what may come behind it; or it was announced and has no receive yet.
  [[nodiscard]] verdict match(int source, const frame& head, bool must_pass, arrival& to);
  /// What was announced for the group and has no receive; null when there is nothing.
  [[nodiscard]] const stray* find_announced(const tcp_channel& group) const noexcept;
  void release(const stray& one);
  /// No more comes from there: what had not come whole is dropped, and ends a receive from any source that had it.
  void lose(int source) noexcept;
  /// Memory for `bytes` of a message at `offset`, or null when it goes nowhere or is to be combined.
  [[nodiscard]] static std::byte* place_of(const arrival& to, std::uint64_t offset) noexcept;
  /// Bytes that have come to their place. What was the last of them ends the receive.
  void came(arrival& to, std::uint64_t bytes);
  /// A receive has all it waited for, or never will.
  void finish(request& r) noexcept;
  /// Whether the group was told that the rank is gone.
  [[nodiscard]] bool is_gone(int source, std::uint64_t generation) const noexcept;
  /// Drops what the group has not taken of a rank that is gone.
  void forget(int source, std::uint64_t generation) noexcept;
  /// The rest of its message never comes: a receive from any source ends, with nothing.
  void break_off(request& r) noexcept;
  /// Takes a receive back that is not yet in a link's hands; false when it is.
  bool withdraw(request& r) noexcept;
  /// Gives back what `post` counted.
  void forget(request& r) noexcept;
  /// A message of this process to itself.
  void deliver_own(tcp_channel& group, request& sent);

  /// Of the credit of `source`, what was taken since the link repaid it.
  [[nodiscard]] std::uint64_t& taken_of(int source) { return taken_[static_cast<std::size_t>(source)]; }

 private:
  [[nodiscard]] request* find_posted(tcp_channel& group, int source, std::uint32_t tag) const noexcept;
  bool accept(request& r, int source, const frame& head) noexcept;

  std::vector<tcp_channel*> channels_;
  // The groups that were closed last, by turns. A message of theirs that is still under way is not one of a group to
  // come. Of a group closed longer ago it would be put aside for good: the credit limits that, too.
  std::array<std::uint64_t, 1024> closed_{};
  std::size_t closings_ = 0;
  std::list<stray> strays_;  // out of the ordinary: it may allocate
  std::vector<int> awaited_;
  int awaited_from_any_ = 0;
  std::vector<std::uint64_t> taken_;
};

}  // namespace muster::inline v0::detail
