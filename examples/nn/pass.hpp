// What one forward and backward pass over a batch goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <muster/comm/group.hpp>
#include <muster/data/cursor.hpp>

namespace nn {

struct pass {
  std::size_t images = 0;  ///< of this rank; may be 0
  bool training = true;    ///< else: the statistics of the training so far, no dropout
  /// Ranks that share the statistics of batch normalisation; null: each has its own.
  muster::group* statistics = nullptr;
  /// The samples, and what tells this step from others: dropout is a function of both, so that it does not depend on
  /// the number of ranks. May be empty where nothing drops out.
  std::span<const muster::sample_id> samples{};
  std::uint64_t key = 0;
  /// Told the parameter whose gradient is complete, at this rank, as the backward pass goes on.
  std::function<void(std::size_t parameter)> ready{};
};

}  // namespace nn
