// SIGTERM asks a training to end.
#pragma once

#include <atomic>
#include <csignal>
#include <mutex>

namespace muster { inline namespace v0 { namespace detail {

inline std::atomic<bool> told_to_end{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

// While one lives SIGTERM asks the training to end. Ranks that are threads share the handler.
class term_handler {
 public:
  term_handler() {
    const std::lock_guard lock(mutex_);
    if (handlers_++ > 0) return;
    told_to_end = false;
    struct sigaction ours {};
    ours.sa_handler = [](int) { told_to_end = true; };
    ours.sa_flags = SA_RESTART;
    (void)::sigaction(SIGTERM, &ours, &former_);
  }
  term_handler(const term_handler&) = delete;
  term_handler& operator=(const term_handler&) = delete;
  ~term_handler() {
    const std::lock_guard lock(mutex_);
    if (--handlers_ == 0) (void)::sigaction(SIGTERM, &former_, nullptr);
  }

 private:
  inline static std::mutex mutex_;
  inline static int handlers_ = 0;
  inline static struct sigaction former_ {};
};

}}}  // namespace muster::v0::detail
