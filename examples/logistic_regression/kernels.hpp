// The arithmetic of logistic regression: log-loss and its gradient over samples of a dataset.
#pragma once

#include <cstdint>
#include <span>

#include <muster/data/cursor.hpp>
#include <muster/data/dataset.hpp>

#include "../tasks.hpp"

namespace logistic {

/// The model: a sample x belongs to the positive class when weights . x + bias > 0.
struct model_view {
  std::span<const float> weights;  ///< At least as many as a sample has features.
  float bias = 0.0f;
};

/// The gradient to which a pass adds.
struct gradient_view {
  std::span<float> weights;  ///< As many as the model has.
  float* bias = nullptr;
};

/// Sums over the samples of a pass.
struct totals {
  double loss = 0.0;          ///< Sum of log(1 + exp(-y (weights . x + bias))); NaN when a margin is not finite.
  std::uint64_t correct = 0;  ///< Number of samples that the model classifies correctly.

  totals& operator+=(const totals& other) noexcept {
    loss += other.loss;
    correct += other.correct;
    return *this;
  }
};

/// Runs one pass over `samples` (sample numbers in `data`): adds `scale` times the gradient of their summed log-loss to
/// `gradient` and returns the sums before any update. `targets` holds +1 or -1 for every sample of `data`.
///
/// Dense rows are processed eight at a time. First all their dot products are computed, while the weights are read once
/// from the first-level cache. Then their part of the gradient is added, while the rows are still in the second-level
/// cache. Memory is therefore read once, in eight streams at a time, which hides its latency when the order is
/// shuffled. With tasks there are two passes: over samples for the losses, then over ranges of features for the
/// gradient, which adds in the same order.
totals add_gradient(const muster::dataset& data, std::span<const muster::sample_id> samples,
                    std::span<const float> targets, const model_view& model, float scale, const gradient_view& gradient,
                    const examples::rank_tasks& tasks = examples::rank_tasks());

/// Returns the same sums for samples [first, last), without a gradient.
totals evaluate(const muster::dataset& data, std::size_t first, std::size_t last, std::span<const float> targets,
                const model_view& model, const examples::rank_tasks& tasks = examples::rank_tasks());

}  // namespace logistic
