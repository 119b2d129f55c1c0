// A kernel that does not end by itself, as a mistake in a program's own may have it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <muster/core/device/memory.hpp>
#include <muster/core/device/stream.hpp>

namespace test {

/// Puts a kernel on the stream that ends when `*flag`, in pinned memory, is not 0 any more.
void spin_until(const int* flag, muster::device_stream_ref stream);

/// Such a kernel, until `end`. A test that hangs because of it is let go after a while, and finds `runs` false.
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
    } catch (...) {  // the next call on the device says it
    }
  }

  [[nodiscard]] bool runs() { return flag().load() == 0; }
  /// Returns when the stream has done what is behind it, too.
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
