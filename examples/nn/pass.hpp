// The settings for one forward and backward pass over a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <muster/comm/group.hpp>
#include <muster/data/cursor.hpp>

namespace nn {

struct pass {
  std::size_t images = 0;  ///< Number of images on this rank; may be 0.
  bool training = true;    ///< Otherwise uses the running statistics of the training, and no dropout.
  /// Ranks that share the statistics of batch normalisation. If null, each rank uses its own statistics.
  muster::group* statistics = nullptr;
  /// Samples of the batch, and this step's key. Dropout is a function of both, so that it does not depend on the
  /// number of ranks. May be empty in a network without dropout.
  std::span<const muster::sample_id> samples{};
  std::uint64_t key = 0;
  /// Called during the backward pass with each parameter whose gradient is complete on this rank.
  std::function<void(std::size_t parameter)> ready{};
};

}  // namespace nn
