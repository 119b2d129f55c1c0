// The interface by which the double's NCCL uses the streams of the double's CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace nccl_double {
/// Appends a task to the stream.
void put_on(cudaStream_t stream, std::function<void()> task);
/// Waits until all pending work on the device is done.
void wait_for_device(int device);
}
