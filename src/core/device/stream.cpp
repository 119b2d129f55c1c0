#include <muster/core/device/stream.hpp>

#include <string>
#include <thread>

#include "check.hpp"

namespace muster { inline namespace v0 {
namespace {

// Waits until `done` returns true or the deadline passes. CUDA has no wait with a deadline, so the function polls,
// first without and then with sleeps.
template <class Done>
void poll(const char* operation, clock::time_point deadline, const Done& done) {
  constexpr int quick = 1000;
  constexpr std::chrono::microseconds nap{50};
  const auto begin = clock::now();
  for (int turn = 0; !done(); ++turn) {
    if (turn < quick) continue;
    if (clock::now() >= deadline) {
      throw timeout_error(operation, {},
                          std::string(operation) + " was not complete after " + std::to_string(seconds_since(begin)) +
                              " s (the device is still working, or waits for a peer); allow more time, or look for a "
                              "kernel that does not end");
    }
    std::this_thread::sleep_for(nap);
  }
}

bool is_done(cudaError_t answer, const char* function) {
  if (answer == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  detail::check_cuda(answer, function);
  return true;
}

}  // namespace

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

int current_device() {
  int device = 0;
  detail::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

void use_device(int device) {
  const int count = device_count();
  if (device < 0 || device >= count) {
    throw configuration_error("there is no device " + std::to_string(device) + " (this process sees " +
                              std::to_string(count) + "); look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  detail::check_cuda(cudaSetDevice(device), "cudaSetDevice");
}

device_stream::device_stream() {
  CUstream_st* created = nullptr;
  detail::check_cuda(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  handle_.reset(created);
}

void device_stream::release::operator()(CUstream_st* handle) const noexcept { (void)cudaStreamDestroy(handle); }

void wait_for(device_stream_ref stream, clock::time_point deadline) {
  poll("work on a stream", deadline, [&] { return is_done(cudaStreamQuery(stream.handle), "cudaStreamQuery"); });
}

device_event::device_event(device_stream_ref stream) {
  CUevent_st* created = nullptr;
  detail::check_cuda(cudaEventCreateWithFlags(&created, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  handle_.reset(created);
  detail::check_cuda(cudaEventRecord(created, stream.handle), "cudaEventRecord");
}

void device_event::release::operator()(CUevent_st* handle) const noexcept { (void)cudaEventDestroy(handle); }

bool device_event::test() const {
  return handle_ == nullptr || is_done(cudaEventQuery(handle_.get()), "cudaEventQuery");
}

void device_event::wait(clock::time_point deadline) const {
  poll("an event", deadline, [&] { return test(); });
}

void device_event::delay(device_stream_ref stream) const {
  if (handle_ != nullptr)
    detail::check_cuda(cudaStreamWaitEvent(stream.handle, handle_.get(), 0), "cudaStreamWaitEvent");
}

}}  // namespace muster::v0
