// A minimal model with the features of a large model: layers, statistics that a step changes, a loss.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include <muster/core/random.hpp>
#include <muster/data/minibatch.hpp>
#include <muster/elastic/state.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/sync/gradient_sync.hpp>

namespace test {

/// A classifier of records with float values: subtracts their running mean, applies one hidden layer with ReLU, and
/// softmax.
class small_model {
 public:
  small_model(std::size_t hidden, std::size_t inputs, std::size_t classes)
      : hidden_(hidden), inputs_(inputs), classes_(classes), mean_(inputs) {}

  [[nodiscard]] std::vector<muster::tensor_shape> shapes() const {
    return {{"first.weight", {hidden_, inputs_}},
            {"first.bias", {hidden_}},
            {"second.weight", {classes_, hidden_}},
            {"second.bias", {classes_}}};
  }
  /// Returns the statistics as shadowed state: a failed step does not change them.
  [[nodiscard]] muster::restored_values<float> batch_norm() { return {"running mean", std::span(mean_), {}}; }

  void initialise(muster::arena& arena, std::uint64_t seed) const {
    muster::random_stream random(seed);
    for (const std::size_t tensor : {std::size_t{0}, std::size_t{2}}) {
      const double scale = std::sqrt(2.0 / static_cast<double>(tensor == 0 ? inputs_ : hidden_));
      for (float& weight : arena.parameter(tensor)) weight = static_cast<float>(random.normal() * scale);
    }
  }

  void forward_backward(const muster::minibatch& batch, muster::backward_pass& backward) {
    backward.divided_by(static_cast<double>(batch.global_size));
    const auto w1 = backward.parameter(0), b1 = backward.parameter(1);
    const auto w2 = backward.parameter(2), b2 = backward.parameter(3);
    const auto values = batch.values<float>();
    const std::size_t samples = batch.samples.size();
    std::vector<float> hidden(samples * hidden_), slopes(samples * classes_);
    loss_ = 0;
    hits_ = 0;
    for (std::size_t s = 0; s < samples; ++s) {
      const float* const x = values.data() + s * inputs_;
      float* const h = hidden.data() + s * hidden_;
      float* const p = slopes.data() + s * classes_;
      forward(x, {w1, b1, w2, b2}, h, p);
      const auto label = static_cast<std::size_t>(batch.labels[s]);
      const float highest = *std::max_element(p, p + classes_);
      hits_ += p[label] == highest ? 1 : 0;
      float all = 0;
      for (std::size_t c = 0; c < classes_; ++c) all += p[c] = std::exp(p[c] - highest);
      for (std::size_t c = 0; c < classes_; ++c) p[c] /= all;
      loss_ -= std::log(std::max(double{p[label]}, 1e-30));
      p[label] -= 1.0f;
      for (std::size_t c = 0; c < classes_; ++c) p[c] /= static_cast<float>(batch.global_size);
    }
    write(backward, 3,
          [&](std::size_t c) { return sum_over(samples, [&](std::size_t s) { return slopes[s * classes_ + c]; }); });
    write(backward, 2, [&](std::size_t at) {
      const std::size_t c = at / hidden_, k = at % hidden_;
      return sum_over(samples, [&](std::size_t s) { return slopes[s * classes_ + c] * hidden[s * hidden_ + k]; });
    });
    std::vector<float> back(samples * hidden_);
    for (std::size_t s = 0; s < samples; ++s) {
      for (std::size_t k = 0; k < hidden_; ++k) {
        if (hidden[s * hidden_ + k] <= 0) continue;
        for (std::size_t c = 0; c < classes_; ++c)
          back[s * hidden_ + k] += slopes[s * classes_ + c] * w2[c * hidden_ + k];
      }
    }
    write(backward, 1,
          [&](std::size_t k) { return sum_over(samples, [&](std::size_t s) { return back[s * hidden_ + k]; }); });
    write(backward, 0, [&](std::size_t at) {
      const std::size_t k = at / inputs_, i = at % inputs_;
      return sum_over(samples,
                      [&](std::size_t s) { return back[s * hidden_ + k] * (values[s * inputs_ + i] - mean_[i]); });
    });
    // The values are the same at every rank, since they depend on a replicated parameter. They stand for statistics
    // over the batch.
    for (std::size_t i = 0; i < inputs_; ++i) mean_[i] = 0.9f * mean_[i] + 0.001f * w1[i];
  }

  /// Returns the share of samples, each with `inputs` values, that the parameters classify according to their labels.
  [[nodiscard]] double accuracy(muster::arena& arena, std::span<const float> values,
                                std::span<const float> labels) const {
    std::vector<float> h(hidden_), p(classes_);
    std::size_t hits = 0;
    for (std::size_t s = 0; s < labels.size(); ++s) {
      forward(values.data() + s * inputs_,
              {arena.parameter(0), arena.parameter(1), arena.parameter(2), arena.parameter(3)}, h.data(), p.data());
      hits += std::max_element(p.begin(), p.end()) - p.begin() == std::lround(labels[s]) ? 1 : 0;
    }
    return static_cast<double>(hits) / static_cast<double>(labels.size());
  }
  /// Returns the loss over this rank's samples of the last batch.
  [[nodiscard]] double loss() const noexcept { return loss_; }
  [[nodiscard]] double hits() const noexcept { return hits_; }

 private:
  struct parameters {
    std::span<const float> w1, b1, w2, b2;
  };
  // Computes the hidden layer and the scores of a sample.
  void forward(const float* x, const parameters& weights, float* h, float* p) const {
    for (std::size_t k = 0; k < hidden_; ++k) {
      float sum = weights.b1[k];
      for (std::size_t i = 0; i < inputs_; ++i) sum += weights.w1[k * inputs_ + i] * (x[i] - mean_[i]);
      h[k] = std::max(sum, 0.0f);
    }
    for (std::size_t c = 0; c < classes_; ++c) {
      p[c] = weights.b2[c];
      for (std::size_t k = 0; k < hidden_; ++k) p[c] += weights.w2[c * hidden_ + k] * h[k];
    }
  }
  template <class Of>
  static float sum_over(std::size_t samples, Of f) {
    float sum = 0;
    for (std::size_t s = 0; s < samples; ++s) sum += f(s);
    return sum;
  }
  template <class Of>
  static void write(muster::backward_pass& backward, std::size_t tensor, Of f) {
    const bool adds = backward.adds(tensor);
    const auto gradient = backward.gradient(tensor);
    for (std::size_t at = 0; at < gradient.size(); ++at) gradient[at] = (adds ? gradient[at] : 0.0f) + f(at);
    backward.ready(tensor);
  }

  std::size_t hidden_, inputs_, classes_;
  std::vector<float> mean_;
  double loss_ = 0;
  double hits_ = 0;
};

}  // namespace test
