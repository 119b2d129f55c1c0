#include <sys/eventfd.h>

#include <cerrno>
#include <system_error>

#include "inbox.hpp"

namespace muster::inline v0::detail {

tcp_channel::tcp_channel(std::uint64_t generation, std::vector<int> members, int rank, int world_size)
    : fates(members.size(), fate::here),
      generation_(generation),
      members_(std::move(members)),
      member_of_(static_cast<std::size_t>(world_size), -1),
      rank_(rank),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!wake_) throw std::system_error(errno, std::generic_category(), "no eventfd for a group");
  for (std::size_t i = 0; i < members_.size(); ++i)
    member_of_[static_cast<std::size_t>(members_[i])] = static_cast<int>(i);
}

void tcp_channel::tell(const notice& message) {
  {
    const std::lock_guard lock(news_mutex_);
    news_.push_back(message);
    news_count_.fetch_add(1);
  }
  wake();
}

bool tcp_channel::hear(notice& message) {
  if (news() == 0) return false;
  const std::lock_guard lock(news_mutex_);
  message = news_.front();
  news_.pop_front();
  news_count_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void tcp_channel::wake() noexcept {
  if (!asleep_.load()) return;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void tcp_channel::set_asleep(bool yes) noexcept {
  asleep_.store(yes);
  if (yes) return;
  std::uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);
}

void append(request*& first, request*& last, request& r) noexcept {
  r.next = nullptr;
  (last == nullptr ? first : last->next) = &r;
  last = &r;
}

bool unlink(request*& first, request*& last, const request& r) noexcept {
  request* before = nullptr;
  for (request* at = first; at != nullptr; before = at, at = at->next) {
    if (at != &r) continue;
    (before == nullptr ? first : before->next) = at->next;
    if (last == at) last = before;
    return true;
  }
  return false;
}

}  // namespace muster::inline v0::detail
