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
  std::span<const float> weights;  ///< at least as many as a sample has features
  float bias = 0.0f;
};

/// Where a gradient is added to.
struct gradient_view {
  std::span<float> weights;  ///< as many as the model has
  float* bias = nullptr;
};

/// What a pass over samples adds up.
struct totals {
  double loss = 0.0;          ///< sum of log(1 + exp(-y (weights . x + bias))); NaN when a margin is not finite
  std::uint64_t correct = 0;  ///< samples whose class the model finds

  totals& operator+=(const totals& other) noexcept {
    loss += other.loss;
    correct += other.correct;
    return *this;
  }
};

/// One pass over `samples` (their numbers in `data`): adds `scale` times the gradient of their summed log-loss to
/// `gradient` and returns the sums as they are before any update. `targets` holds +1 or -1 for every sample of `data`.
///
/// Dense rows are taken eight at a time: all their dot products first, while the weights are read once from the nearest
/// cache, then their part of the gradient, while the rows still are in the second-level cache. So memory is read once,
/// eight streams at a time, which is what hides its latency when a shuffle jumps about. With tasks there are two
/// passes: over samples for the losses, then over ranges of features for the gradient, which adds in the same order.
totals add_gradient(const muster::dataset& data, std::span<const muster::sample_id> samples,
                    std::span<const float> targets, const model_view& model, float scale, const gradient_view& gradient,
                    const examples::rank_tasks& tasks = examples::rank_tasks());

/// The same sums of samples [first, last) without a gradient.
totals evaluate(const muster::dataset& data, std::size_t first, std::size_t last, std::span<const float> targets,
                const model_view& model, const examples::rank_tasks& tasks = examples::rank_tasks());

}  // namespace logistic
