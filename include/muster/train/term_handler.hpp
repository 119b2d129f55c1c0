// A handler by which SIGTERM requests the end of a training.
#pragma once

#include <atomic>
#include <csignal>
#include <mutex>

namespace muster { inline namespace v0 { namespace detail {

inline std::atomic<bool> termination_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

// A scope in which SIGTERM requests the end of the training. Ranks that are threads share the handler.
class term_handler {
 public:
  term_handler() {
    const std::lock_guard lock(mutex_);
    if (handlers_++ > 0) return;
    termination_requested = false;
    struct sigaction action {};
    action.sa_handler = [](int) { termination_requested = true; };
    action.sa_flags = SA_RESTART;
    (void)::sigaction(SIGTERM, &action, &former_);
  }
  term_handler(const term_handler&) = delete;
  term_handler& operator=(const term_handler&) = delete;
  ~term_handler() {
    const std::lock_guard lock(mutex_);
    if (--handlers_ == 0) (void)::sigaction(SIGTERM, &former_, nullptr);
  }

 private:
  inline static std::mutex mutex_;
  inline static int handlers_ = 0;            // guarded by mutex_
  inline static struct sigaction former_ {};  // guarded by mutex_
};

}}}  // namespace muster::v0::detail
