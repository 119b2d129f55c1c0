// How the double's NCCL gets onto a stream of the double's CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace nccl_double {
void put_on(cudaStream_t stream, std::function<void()> task);
/// Whatever that device has yet to do.
void wait_for_device(int which);
}
