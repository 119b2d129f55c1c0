#include "core/device/launch.hpp"

#ifndef __CUDACC__
#include <chrono>
#include <thread>
#endif

namespace test {

void spin_until(const int* flag, muster::device_stream_ref stream);

#ifdef __CUDACC__

namespace {
__global__ void spin(const volatile int* flag) {
  while (*flag == 0) {
  }
}
}  // namespace

void spin_until(const int* flag, muster::device_stream_ref stream) {
  spin<<<1, 1, 0, stream.handle>>>(flag);
  muster::detail::check_cuda(cudaGetLastError(), "starting a kernel");
}

#else

void spin_until(const int* flag, muster::device_stream_ref stream) {
  nccl_double::call_on_stream(stream, [flag] {
    while (__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
}

#endif

}  // namespace test
