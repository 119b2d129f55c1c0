// The wait of a thread that serves connections: for files, for a deadline, and for wake-ups by other threads.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <muster/core/clock.hpp>

#include <muster/core/descriptor.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// An event loop over epoll. Used by one thread, except `wake` and `post`. Registrations must end before the loop does.
class event_loop {
 public:
  /// Receives the events: EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR. The handler may end its own registration and others.
  using handler = std::function<void(std::uint32_t events)>;

  /// The registration of a descriptor, which must be destroyed before the descriptor is closed.
  class registration {
   public:
    registration() = default;
    registration(event_loop& loop, int fd, std::uint64_t handler_id, std::uint32_t events) noexcept
        : loop_(&loop), fd_(fd), id_(handler_id), events_(events) {}
    registration(registration&& other) noexcept { *this = std::move(other); }
    registration& operator=(registration&& other) noexcept {
      std::swap(loop_, other.loop_);
      std::swap(fd_, other.fd_);
      std::swap(id_, other.id_);
      std::swap(events_, other.events_);
      return *this;
    }
    ~registration();
    /// Sets the events to wait for: EPOLLIN, EPOLLOUT, both or none.
    void set_events(std::uint32_t events) noexcept;

   private:
    event_loop* loop_ = nullptr;
    int fd_ = -1;
    std::uint64_t id_ = 0;
    std::uint32_t events_ = 0;
  };

  /// Throws error when no descriptor is left for the loop.
  event_loop();

  /// Registers a descriptor with the events to wait for. Throws error when epoll does not support the descriptor.
  [[nodiscard]] registration watch(int fd, std::uint32_t events, handler handle);
  /// Ends the present wait, or the next one. Callable by any thread.
  void wake() noexcept;
  /// Runs `callback` at the next `dispatch`. Callable by any thread.
  void post(std::function<void()> callback);
  /// Waits until an event occurs or `wake` is called, at most until the deadline, and at most for a minute.
  void wait(clock::time_point until) noexcept;
  /// Runs the posted callbacks, and calls the handlers of the events that the wait found.
  void dispatch();

 private:
  static constexpr std::uint64_t bell_id = 0;

  descriptor epoll_;
  descriptor bell_;
  std::uint64_t last_id_ = bell_id;
  std::map<std::uint64_t, std::shared_ptr<handler>> handlers_;
  std::array<epoll_event, 64> found_{};
  int count_ = 0;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_
};

}}}  // namespace muster::v0::detail
