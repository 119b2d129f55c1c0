// Ranks with a device each: threads over the test double, or a single rank over the real library.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/transports/nccl/communicator.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/device/memory.hpp>

#include "catch.hpp"

#ifdef MUSTER_TEST_DOUBLE
#include "double/control.hpp"
#endif

// For test cases that also run on the real library: skips the test case if there is no device.
#ifdef MUSTER_TEST_DOUBLE
#define MUSTER_NEEDS_DEVICE() SUCCEED(nccl_double::name)
#else
#define MUSTER_NEEDS_DEVICE()                                                 \
  if (muster::device_count() == 0) {                                          \
    std::printf("SKIPPED: no device here (cudaGetDeviceCount finds none)\n"); \
    return;                                                                   \
  }                                                                           \
  std::printf("on device %d, by NCCL %d\n", muster::current_device(), muster::nccl::version())
#endif

namespace devices {

inline std::vector<int> worlds() {
#ifdef MUSTER_TEST_DOUBLE
  return {1, 2, 3, 4};
#else
  return {1};
#endif
}

/// Longest wait in a test.
inline constexpr muster::seconds patience{30};

/// Runs `body` on `ranks` ranks and returns the exception that each rank threw, or null. Each rank is a thread with a
/// group over `threads`, and has its own device if there are enough devices.
inline std::vector<std::exception_ptr> outcomes(int ranks, const std::function<void(muster::group&)>& body) {
  const auto hub = std::make_shared<muster::thread_hub>(ranks);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        muster::use_device(rank % muster::device_count());
        muster::group world(std::make_unique<muster::thread_transport>(hub, rank), {.timeout = patience});
        body(world);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  threads.clear();
  return thrown;
}

/// Runs `body` on all ranks, each with a communicator and a stream. Throws the exception of any rank.
inline void run(int ranks, const std::function<void(muster::nccl::communicator&, muster::device_stream_ref)>& body) {
  const auto thrown = outcomes(ranks, [&](muster::group& world) {
    muster::nccl::communicator all(world, {.timeout = patience});
    const muster::device_stream stream;
    body(all, stream);
  });
  for (const auto& failure : thrown) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// Copies values to the device.
template <class T>
muster::device_buffer<T> on_device(const std::vector<T>& values, muster::device_stream_ref stream) {
  muster::device_buffer<T> result(values.size());
  muster::copy(std::span<const T>(values), result.span(), stream);
  return result;
}

/// Copies values to the host after all work on the stream.
template <class T>
std::vector<std::remove_const_t<T>> on_host(muster::device_span<T> values, muster::device_stream_ref stream) {
  std::vector<std::remove_const_t<T>> result(values.size());
  muster::copy(muster::device_span<const T>(values), std::span(result), stream);
  muster::wait_for(stream, muster::deadline_after(patience));
  return result;
}

}  // namespace devices
