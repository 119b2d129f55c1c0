#pragma once

#include <muster/comm/net/event_loop.hpp>

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline bool control(const descriptor& epoll, int operation, int fd, std::uint32_t events,
                    std::uint64_t handler_id) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = handler_id;
  return ::epoll_ctl(epoll.get(), operation, fd, &event) == 0;
}

[[noreturn]] inline void refuse() {
  throw error(error_kind::other, "connections cannot be served (epoll: " + std::string(std::strerror(errno)) +
                                     "); check the limit of open files (ulimit -n)");
}

MUSTER_INLINE event_loop::event_loop()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!epoll_ || !bell_ || !control(epoll_, EPOLL_CTL_ADD, bell_.get(), EPOLLIN, bell_id)) refuse();
}

MUSTER_INLINE event_loop::registration event_loop::watch(int fd, std::uint32_t events, handler handle) {
  const auto id = ++last_id_;
  handlers_.emplace(id, std::make_shared<handler>(std::move(handle)));
  if (!control(epoll_, EPOLL_CTL_ADD, fd, events, id)) {
    handlers_.erase(id);
    refuse();
  }
  return {*this, fd, id, events};
}

MUSTER_INLINE event_loop::registration::~registration() {
  if (loop_ == nullptr) return;
  (void)control(loop_->epoll_, EPOLL_CTL_DEL, fd_, 0, id_);
  loop_->handlers_.erase(id_);
}

MUSTER_INLINE void event_loop::registration::set_events(std::uint32_t events) noexcept {
  if (events == events_ || loop_ == nullptr) return;
  events_ = events;
  (void)control(loop_->epoll_, EPOLL_CTL_MOD, fd_, events, id_);
}

MUSTER_INLINE void event_loop::wake() noexcept {
  const std::uint64_t increment = 1;
  (void)!::write(bell_.get(), &increment, sizeof increment);
}

MUSTER_INLINE void event_loop::post(std::function<void()> callback) {
  {
    const std::lock_guard held(mutex_);
    posted_.push_back(std::move(callback));
  }
  wake();
}

MUSTER_INLINE void event_loop::wait(clock::time_point until) noexcept {
  constexpr long long longest = 60'000;  // milliseconds; the caller checks its clock again
  const auto remaining = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
  count_ = ::epoll_wait(epoll_.get(), found_.data(), static_cast<int>(found_.size()),
                        static_cast<int>(std::clamp<long long>(remaining, 0, longest)));
}

MUSTER_INLINE void event_loop::dispatch() {
  std::vector<std::function<void()>> posted;
  {
    const std::lock_guard held(mutex_);
    posted.swap(posted_);
  }
  for (const auto& callback : posted) callback();
  for (int i = 0; i < count_; ++i) {
    const auto& event = found_[static_cast<std::size_t>(i)];
    if (event.data.u64 == bell_id) {
      std::uint64_t rung = 0;
      (void)!::read(bell_.get(), &rung, sizeof rung);
      continue;
    }
    const auto found = handlers_.find(event.data.u64);
    if (found == handlers_.end()) continue;  // an earlier handler has ended it
    const auto handle = found->second;       // kept alive: the handler may end its own registration
    (*handle)(event.events);
  }
  count_ = 0;
}

}}}  // namespace muster::v0::detail
