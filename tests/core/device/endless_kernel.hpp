// A kernel that does not end by itself, like a faulty kernel of a program.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <muster/core/device/memory.hpp>
#include <muster/core/device/stream.hpp>

namespace test {

/// Enqueues a kernel that ends when `*flag`, in pinned memory, is not 0 any more.
void spin_until(const int* flag, muster::device_stream_ref stream);

/// A kernel that runs until `end`. After a timeout it ends by itself, so that a hanging test continues and finds `runs`
/// false.
class endless_kernel {
 public:
  explicit endless_kernel(muster::device_stream_ref stream) : stream_(stream), flag_(1) {
    spin_until(flag_.span().data(), stream);
    guard_ = std::jthread([this](const std::stop_token& stop) {
      std::mutex mutex;
      std::condition_variable_any never;
      std::unique_lock lock(mutex);
      (void)never.wait_for(lock, stop, std::chrono::seconds(120), [] { return false; });
      if (!stop.stop_requested()) flag().store(1);
    });
  }
  endless_kernel(const endless_kernel&) = delete;
  endless_kernel& operator=(const endless_kernel&) = delete;
  ~endless_kernel() {
    flag().store(1);
    try {
      muster::wait_for(stream_, muster::deadline_after(muster::seconds(60)));
    } catch (...) {  // the next call on the device returns the same error
    }
  }

  [[nodiscard]] bool runs() { return flag().load() == 0; }
  /// Ends the kernel, and waits until the stream has completed all operations.
  void end() {
    flag().store(1);
    muster::wait_for(stream_, muster::deadline_after(muster::seconds(60)));
  }

 private:
  [[nodiscard]] std::atomic_ref<int> flag() { return std::atomic_ref(flag_.span()[0]); }

  muster::device_stream_ref stream_;
  muster::pinned_buffer<int> flag_;
  std::jthread guard_;
};

}  // namespace test
