// One group's part in the matching of messages: the members, the posted receives, and the unread control messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <vector>

#include <muster/comm/request_table.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A group of ranks as a matcher sees it. A matcher serves several groups: a "member" is a rank of the group, a "peer"
/// a process that the matcher is connected to.
class matching_group {
 public:
  /// `group_id` identifies the group in the header of a message. `members` holds the peer of each rank; `rank` is
  /// this process's rank in the group. `peers` is the number of peers of the matcher, this process included.
  matching_group(std::uint64_t group_id, std::vector<int> members, int rank, int peers);
  virtual ~matching_group() = default;

  [[nodiscard]] std::uint64_t group_id() const noexcept { return generation_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int peer(int member) const noexcept { return members_[static_cast<std::size_t>(member)]; }
  /// Returns the rank of a peer in the group; -1 for a peer that is not in the group.
  [[nodiscard]] int member(int peer) const noexcept { return member_of_[static_cast<std::size_t>(peer)]; }

  /// Appends a control message to the group's unread messages. Any thread may call this.
  void post_control_message(const control_message& message);
  /// Removes the oldest control message; returns false when there is none. Then the call costs one atomic load.
  [[nodiscard]] bool next_control_message(control_message& message);
  [[nodiscard]] std::uint32_t unread_control_messages() const noexcept { return unread_count_.load(); }
  /// Ends the pause of the thread that works with the group: a request of the group has finished, or a control message
  /// has arrived. Any thread may call this.
  virtual void wake() noexcept {}

  // The fields below are guarded by the lock of the matcher's transport.
  request_table posted;                     // receives that have no message yet
  std::exception_ptr failure;               // the error of a receive, which the next test throws
  std::uint64_t started_collectives = 0;    // number of the group's collectives that this rank has started
  std::uint64_t finished = 0;               // number of finished requests; any thread may have finished them
  std::uint64_t finished_at_last_test = 0;  // value of `finished` at the last test
  std::vector<bool> ended_members;          // by member: set when the group was notified that the member is gone
  [[nodiscard]] bool has_ended(int member) const noexcept {
    return member >= 0 && ended_members[static_cast<std::size_t>(member)];
  }

 private:
  std::uint64_t generation_;
  std::vector<int> members_;
  std::vector<int> member_of_;
  int rank_;
  std::mutex unread_mutex_;
  std::deque<control_message> unread_;          // Guarded by unread_mutex_.
  std::atomic<std::uint32_t> unread_count_{0};  // size of `unread_`, readable without the mutex
};

inline matching_group::matching_group(std::uint64_t group_id, std::vector<int> members, int rank, int peers)
    : ended_members(members.size(), false),
      generation_(group_id),
      members_(std::move(members)),
      member_of_(static_cast<std::size_t>(peers), -1),
      rank_(rank) {
  for (std::size_t i = 0; i < members_.size(); ++i)
    member_of_[static_cast<std::size_t>(members_[i])] = static_cast<int>(i);
}

inline void matching_group::post_control_message(const control_message& message) {
  {
    const std::lock_guard lock(unread_mutex_);
    unread_.push_back(message);
    unread_count_.fetch_add(1);
  }
  wake();
}

inline bool matching_group::next_control_message(control_message& message) {
  if (unread_control_messages() == 0) return false;
  const std::lock_guard lock(unread_mutex_);
  if (unread_.empty()) return false;  // another thread took the message
  message = unread_.front();
  unread_.pop_front();
  unread_count_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

}}}  // namespace muster::v0::detail
