// The one wait of a thread that serves connections: for files, for a moment, and for other threads that wake it.
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

#include "../../core/descriptor.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Used by one thread, but for `wake` and `post`. Registrations end before it does.
class event_loop {
 public:
  /// Gets what is there: EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR. It may end its own registration and others.
  using handler = std::function<void(std::uint32_t events)>;

  /// A file that is waited for, until this is destroyed, which comes before the file is closed.
  class registration {
   public:
    registration() = default;
    registration(event_loop& loop, int file, std::uint64_t id, std::uint32_t events) noexcept
        : loop_(&loop), file_(file), id_(id), events_(events) {}
    registration(registration&& other) noexcept { *this = std::move(other); }
    registration& operator=(registration&& other) noexcept {
      std::swap(loop_, other.loop_);
      std::swap(file_, other.file_);
      std::swap(id_, other.id_);
      std::swap(events_, other.events_);
      return *this;
    }
    ~registration();
    /// Waits for these from now on, EPOLLIN or EPOLLOUT or both or none.
    void want(std::uint32_t events) noexcept;

   private:
    event_loop* loop_ = nullptr;
    int file_ = -1;
    std::uint64_t id_ = 0;
    std::uint32_t events_ = 0;
  };

  /// Throws error where the system has no descriptor for it.
  event_loop();

  /// Throws error where the file cannot be waited for.
  [[nodiscard]] registration watch(int file, std::uint32_t events, handler act);
  /// By any thread: ends the wait, or the next one.
  void wake() noexcept;
  /// By any thread: has that done at the next `dispatch`.
  void post(std::function<void()> what);
  /// Until something is there, at the latest until then.
  void wait(clock::time_point until) noexcept;
  /// Does what was posted, and calls the handlers of what the wait found.
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
  std::vector<std::function<void()>> posted_;
};

}}}  // namespace muster::v0::detail
