#include "core/device/launch.hpp"

#ifndef __CUDACC__
#include <chrono>
#include <thread>
#endif

namespace test {
namespace {

struct spins {
  const int* flag;
#ifdef __CUDACC__
  __device__ void operator()(std::size_t) const {
    while (*static_cast<const volatile int*>(flag) == 0) {
    }
  }
#else
  void operator()(std::size_t) const {
    while (__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
#endif
};

}  // namespace

void spin_until(const int* flag, muster::device_stream_ref stream);
void spin_until(const int* flag, muster::device_stream_ref stream) { muster::detail::for_each(stream, 1, spins{flag}); }

}  // namespace test
