// A model with gradients that can be computed by hand: integers, so that sums are exact in any order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <muster/train/arena.hpp>
#include <muster/train/device/gradients.hpp>

#include "comm/transports/nccl/devices.hpp"

namespace device_model {

inline std::vector<muster::tensor_shape> shapes() {
  return {{"first.weight", {40, 30}},
          {"first.bias", {40}},
          {"scale", {}},
          {"second.weight", {10, 40}},
          {"second.bias", {10}}};
}

/// Returns the gradient of a tensor, summed over the samples of a rank in a step.
inline std::vector<float> gradient(std::size_t tensor, int rank, std::uint64_t step) {
  std::vector<float> values(shapes()[tensor].size());
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i * 7 + tensor * 3 + static_cast<std::size_t>(rank) * 5 + step * 11) % 17) - 8.0f;
  return values;
}

/// Returns the number of samples of a rank in a step: a different number at each rank, and 0 at some.
inline std::uint64_t samples(int rank, std::uint64_t step) { return (static_cast<std::uint64_t>(rank) + step) % 3 * 4; }

inline std::uint64_t all_samples(int ranks, std::uint64_t step) {
  std::uint64_t all = 0;
  for (int rank = 0; rank < ranks; ++rank) all += samples(rank, step);
  return all;
}

/// Returns the gradient that every rank must have after the step's reduction.
inline std::vector<float> reduced(std::size_t tensor, int ranks, std::uint64_t step) {
  std::vector<float> sums(shapes()[tensor].size(), 0.0f);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto part = gradient(tensor, rank, step);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  }
  const auto factor = static_cast<float>(1.0 / static_cast<double>(all_samples(ranks, step)));
  for (float& sum : sums) sum *= factor;
  return sums;
}

/// Performs a backward pass, from the last layer to the first.
inline void backward(muster::device_arena& arena, muster::backward_pass& pass, int rank, std::uint64_t step) {
  pass.add_samples(samples(rank, step));
  for (std::size_t tensor = shapes().size(); tensor-- > 0;) {
    const auto values = gradient(tensor, rank, step);
    muster::copy(std::span<const float>(values), arena.gradient(tensor), arena.stream());
    pass.ready(tensor);
  }
}

/// Performs the same step on the host: writes the result of the reduction into an arena.
inline void fill(muster::arena& arena, int ranks, std::uint64_t step) {
  for (std::size_t tensor = 0; tensor < shapes().size(); ++tensor) {
    const auto values = reduced(tensor, ranks, step);
    std::copy(values.begin(), values.end(), arena.gradient(tensor).begin());
  }
}

/// A rank of a training whose gradients are summed by NCCL or by the group.
struct rank {
  muster::group& world;
  muster::nccl::communicator* nccl;  ///< null: the group sums
  muster::device_stream_ref stream;

  [[nodiscard]] int number() const { return world.rank(); }
  [[nodiscard]] std::unique_ptr<muster::gradient_backend> gradients_on(
      muster::device_arena& arena, muster::dtype send_as = muster::dtype::float32) const {
    return nccl != nullptr ? muster::gradients_on(arena, *nccl, send_as) : muster::gradients_on(arena, send_as);
  }
  [[nodiscard]] muster::backward_pass begin(muster::gradient_sync& sync) const {
    return nccl != nullptr ? sync.begin() : sync.begin(world);
  }
};

/// Both kinds of reduction, with a single rank and several; NCCL where there are enough devices.
struct setting {
  bool by_nccl;
  int ranks;
};
inline std::vector<setting> settings() {
  std::vector<setting> all;
  for (const int ranks : devices::worlds()) all.push_back({true, ranks});
  for (const int ranks : {1, 2, 3, 4}) all.push_back({false, ranks});
  return all;
}

/// Runs `body` on all ranks and rethrows the exception of any rank.
inline void run(const setting& chosen, const std::function<void(const rank&)>& body) {
  const auto thrown = devices::outcomes(chosen.ranks, [&](muster::group& world) {
    std::optional<muster::nccl::communicator> all;
    if (chosen.by_nccl) all.emplace(world);
    const muster::device_stream stream;
    body({world, all ? &*all : nullptr, stream});
  });
  for (const auto& failure : thrown) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace device_model
