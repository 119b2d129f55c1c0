#include "matching_group.hpp"

namespace muster { inline namespace v0 { namespace detail {

matching_group::matching_group(std::uint64_t group_id, std::vector<int> members, int rank, int peers)
    : ended_members(members.size(), false),
      generation_(group_id),
      members_(std::move(members)),
      member_of_(static_cast<std::size_t>(peers), -1),
      rank_(rank) {
  for (std::size_t i = 0; i < members_.size(); ++i)
    member_of_[static_cast<std::size_t>(members_[i])] = static_cast<int>(i);
}

void matching_group::post_control_message(const control_message& message) {
  {
    const std::lock_guard lock(unread_mutex_);
    unread_.push_back(message);
    unread_count_.fetch_add(1);
  }
  wake();
}

bool matching_group::next_control_message(control_message& message) {
  if (unread_control_messages() == 0) return false;
  const std::lock_guard lock(unread_mutex_);
  if (unread_.empty()) return false;  // another thread took the message
  message = unread_.front();
  unread_.pop_front();
  unread_count_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

}}}  // namespace muster::v0::detail
