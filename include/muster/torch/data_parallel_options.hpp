// Options of data parallelism.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/ATen.h>

#include <muster/torch/detail/module_buffers.hpp>
#include <muster/train/sync/gradient_sync.hpp>

namespace muster { inline namespace v0 { namespace torch {

/// Options of a `data_parallel`.
struct data_parallel_options {
  buffer_exchange buffers = buffer_exchange::broadcast;  ///< the values of buffers after a step
  sync_options sync{};  ///< buckets, codec and clipping without a `training`, which has sync_options of its own
  /// LibTorch's threads for each rank. 0: where OMP_NUM_THREADS is not set, at most the processors of this host divided
  /// by its ranks.
  int threads = 0;
  /// Returns a loss of any input, for example `net->forward(torch::zeros({2, 3, 32, 32})).sum()`. Its backward pass, in
  /// the constructor, fixes the order of the buckets. Empty: the reverse order of registration. The same at every rank.
  std::function<at::Tensor()> trial{};
};

/// The reduction of a loss over the samples of a part, as LibTorch's losses have it.
enum class loss_reduction : std::uint8_t { mean, sum };

}}}  // namespace muster::v0::torch
