// One group's part in the matching of messages: its members, the receives that wait, and what it was told of its ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <vector>

#include <muster/comm/request_queue.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Its ranks are the group's, its peers are those of the matcher, which serves several groups.
class matching_group {
 public:
  /// `members` are peers, `rank` this process's place among them.
  matching_group(std::uint64_t generation, std::vector<int> members, int rank, int peers);
  virtual ~matching_group() = default;

  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int peer(int member) const noexcept { return members_[static_cast<std::size_t>(member)]; }
  /// -1 for a peer that is not in the group.
  [[nodiscard]] int member(int peer) const noexcept { return member_of_[static_cast<std::size_t>(peer)]; }

  /// By any thread: gives the group a control message.
  void tell(const control_message& message);
  /// The oldest; false when there is none. Costs one load then.
  [[nodiscard]] bool hear(control_message& message);
  [[nodiscard]] std::uint32_t news() const noexcept { return news_count_.load(); }
  /// A request of the group has finished, or it was told something: ends the pause of the thread that works with it. By
  /// any thread.
  virtual void wake() noexcept {}

  // Below: for those that may use the matcher just now.
  request_queue posted;        // receives that have no message yet
  std::exception_ptr failure;  // of a receive: thrown by the next test
  std::uint64_t called = 0;    // collectives of the group that this rank has begun
  std::uint64_t finished = 0;  // requests that were, by any thread
  std::uint64_t looked = 0;    // how many that were at the last test
  std::vector<bool> lost;      // by member: it was told to be gone
  [[nodiscard]] bool has_lost(int member) const noexcept {
    return member >= 0 && lost[static_cast<std::size_t>(member)];
  }

 private:
  std::uint64_t generation_;
  std::vector<int> members_;
  std::vector<int> member_of_;
  int rank_;
  std::mutex news_mutex_;
  std::deque<control_message> news_;
  std::atomic<std::uint32_t> news_count_{0};
};

}}}  // namespace muster::v0::detail
