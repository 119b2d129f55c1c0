// TEST DOUBLE, never installed: the CUDA runtime on host memory. A stream is a thread that runs its tasks in order, so
// work on a stream is as asynchronous as on a device.
#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "control.hpp"
#include "stream.hpp"

namespace {

constexpr int devices = 8;
constexpr std::size_t device_memory = std::size_t{1} << 30;
thread_local int device = 0;

struct allocations {
  std::mutex mutex;
  std::map<const void*, std::size_t> bytes;
  std::map<const void*, std::size_t> pinned;
  std::size_t all = 0;
};
allocations& memory() {
  static auto* const instance = new allocations;  // the threads of streams may outlive static objects
  return *instance;
}

/// Returns true if the memory is neither device memory nor pinned.
bool is_pageable(const void* address) {
  const auto is_in = [address](const std::map<const void*, std::size_t>& parts) {
    const auto next = parts.upper_bound(address);
    if (next == parts.begin()) return false;
    const auto& [first, bytes] = *std::prev(next);
    return static_cast<const char*>(address) < static_cast<const char*>(first) + bytes;
  };
  const std::lock_guard lock(memory().mutex);
  return !is_in(memory().bytes) && !is_in(memory().pinned);
}

/// The tasks of a stream. The stream's thread shares the queue, so a destroyed stream still finishes its tasks.
struct queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool busy = false;
  bool closed = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closed || !tasks.empty(); });
      if (tasks.empty()) return;
      const auto task = std::move(tasks.front());
      tasks.pop_front();
      busy = true;
      lock.unlock();
      task();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

struct signature {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

[[maybe_unused]] const bool printed_name = [] {
  std::fprintf(stderr, "[%s]\n", nccl_double::name);
  return true;
}();

struct queues_of_devices {
  std::mutex mutex;
  std::vector<std::pair<int, std::weak_ptr<queue>>> queues;
};
queues_of_devices& streams() {
  static auto* const instance = new queues_of_devices;
  return *instance;
}

}  // namespace

struct CUstream_st {
  std::shared_ptr<queue> work = std::make_shared<queue>();
  CUstream_st() {
    auto& all = streams();
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.queues, [](const auto& entry) { return entry.second.expired(); });
    all.queues.emplace_back(device, work);
    std::thread([mine = work] { mine->run(); }).detach();
  }
};

struct CUevent_st {
  std::shared_ptr<signature> at;
};

namespace {
queue& queue_of(cudaStream_t stream) {
  static auto* const default_stream = new CUstream_st;
  return stream == nullptr ? *default_stream->work : *stream->work;
}
}  // namespace

namespace nccl_double {

void put_on(cudaStream_t stream, std::function<void()> task) {
  queue& work = queue_of(stream);
  const std::lock_guard lock(work.mutex);
  work.tasks.push_back(std::move(task));
  work.changed.notify_all();
}

void wait_for_device(int device_number) {
  std::vector<std::shared_ptr<queue>> device_queues;
  {
    auto& all = streams();
    const std::lock_guard lock(all.mutex);
    for (const auto& [owner, stream_queue] : all.queues) {
      if (auto work = stream_queue.lock(); work && owner == device_number) device_queues.push_back(std::move(work));
    }
  }
  for (const auto& stream_queue : device_queues) {
    std::unique_lock lock(stream_queue->mutex);
    stream_queue->changed.wait(lock, [&] { return stream_queue->tasks.empty() && !stream_queue->busy; });
  }
}

std::size_t allocated_bytes() {
  const std::lock_guard lock(memory().mutex);
  std::size_t all = memory().all;
  for (const auto& [first, bytes] : memory().pinned) all += bytes;
  return all;
}

}  // namespace nccl_double

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error (test double)";
    case cudaErrorMemoryAllocation:
      return "out of memory (test double)";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal (test double)";
    default:
      return "an error (test double)";
  }
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* current) {
  *current = device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int selected) {
  if (selected < 0 || selected >= devices) return cudaErrorInvalidDevice;
  device = selected;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* place, int length, int device_number) {
  std::snprintf(place, static_cast<std::size_t>(length), "double:%02x", static_cast<unsigned>(device_number));
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** result, size_t bytes) {
  auto& all = memory();
  const std::lock_guard lock(all.mutex);
  if (bytes > device_memory - all.all) return cudaErrorMemoryAllocation;
  *result = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*result, 0xa5, bytes);  // a device does not clear memory either
  all.bytes[*result] = bytes;
  all.all += bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  nccl_double::wait_for_device(device);  // as in the CUDA runtime: pending work may still use the memory
  auto& all = memory();
  const std::lock_guard lock(all.mutex);
  const auto found = all.bytes.find(pointer);
  if (found == all.bytes.end()) return cudaErrorInvalidValue;
  all.all -= found->second;
  all.bytes.erase(found);
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** result, size_t bytes, unsigned int) {
  *result = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  const std::lock_guard lock(memory().mutex);
  memory().pinned[*result] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  {
    const std::lock_guard lock(memory().mutex);
    if (memory().pinned.erase(pointer) == 0) return cudaErrorInvalidValue;
  }
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  *all = device_memory;
  const std::lock_guard lock(memory().mutex);
  *free = device_memory - memory().all;
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  const auto result = cudaMemsetAsync(pointer, value, bytes, nullptr);
  return result == cudaSuccess ? cudaStreamSynchronize(nullptr) : result;
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  nccl_double::put_on(stream, [=] { std::memset(pointer, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t stream) {
  nccl_double::put_on(stream, [=] { std::memmove(destination, source, bytes); });
  // With memory that is not pinned, the runtime copies the source before it returns.
  return is_pageable(source) ? cudaStreamSynchronize(stream) : cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(stream->work->mutex);
    stream->work->closed = true;
    stream->work->changed.notify_all();
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  queue& work = queue_of(stream);
  const std::lock_guard lock(work.mutex);
  return work.busy || !work.tasks.empty() ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  queue& work = queue_of(stream);
  std::unique_lock lock(work.mutex);
  work.changed.wait(lock, [&] { return !work.busy && work.tasks.empty(); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  nccl_double::put_on(stream, [=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->at = std::make_shared<signature>();
  nccl_double::put_on(stream, [at = event->at] {
    const std::lock_guard lock(at->mutex);
    at->done = true;
    at->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!event->at) return cudaSuccess;
  const std::lock_guard lock(event->at->mutex);
  return event->at->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  if (!event->at) return cudaSuccess;
  nccl_double::put_on(stream, [at = event->at] {
    std::unique_lock lock(at->mutex);
    at->changed.wait(lock, [&] { return at->done; });
  });
  return cudaSuccess;
}

}  // extern "C"
