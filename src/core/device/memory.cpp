#include <muster/core/device/memory.hpp>

#include <cstring>
#include <string>

#include "check.hpp"

namespace muster { inline namespace v0 { namespace detail {

void device_release::operator()(void* memory) const noexcept { (void)cudaFree(memory); }

void* allocate_on_device(std::size_t bytes) {
  void* memory = nullptr;
  if (const auto answer = cudaMalloc(&memory, bytes); answer != cudaSuccess) {
    (void)cudaGetLastError();
    std::size_t free = 0;
    std::size_t all = 0;
    (void)cudaMemGetInfo(&free, &all);
    throw error(error_kind::other, "the device cannot allocate " + std::to_string(bytes) +
                                       " bytes (CUDA: " + cudaGetErrorString(answer) + "; " + std::to_string(free) +
                                       " of " + std::to_string(all) + " bytes are free); use a smaller model or batch");
  }
  std::unique_ptr<void, device_release> held(memory);
  check_cuda(cudaMemset(memory, 0, bytes), "cudaMemset");
  check_cuda(cudaStreamSynchronize(nullptr),
             "cudaStreamSynchronize");  // non-blocking streams do not wait for the default stream
  return held.release();
}

void pinned_release::operator()(void* memory) const noexcept { (void)cudaFreeHost(memory); }

void* allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc");
  std::memset(memory, 0, bytes);
  return memory;
}

// CUDA determines the direction from the addresses.
void copy_anywhere(const void* source, void* destination, std::size_t bytes, device_stream_ref stream) {
  if (bytes > 0)
    check_cuda(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream.handle), "cudaMemcpyAsync");
}

void clear_on_device(void* memory, std::size_t bytes, device_stream_ref stream) {
  if (bytes > 0) check_cuda(cudaMemsetAsync(memory, 0, bytes, stream.handle), "cudaMemsetAsync");
}

void require_same_size(std::size_t source_size, std::size_t destination_size) {
  if (source_size == destination_size) return;
  throw configuration_error("cannot copy " + std::to_string(source_size) + " elements to a span of " +
                            std::to_string(destination_size) + " (the lengths differ); pass spans with equal lengths");
}

}}}  // namespace muster::v0::detail
