// A perceptron with one hidden layer, in plain loops: an example of the members that a user-defined model needs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <muster/muster.hpp>

/// A classifier of images of bytes: inputs -> hidden (ReLU) -> classes (softmax).
class mlp {
 public:
  muster::arena arena;  ///< The tensors from the input to the loss: parameters and gradients.

  /// Initialises the parameters with the same values at every rank.
  mlp(muster::context& context, std::size_t inputs, std::size_t hidden, std::size_t classes)
      : arena(context, {{"w1", {hidden, inputs}}, {"b1", {hidden}}, {"w2", {classes, hidden}}, {"b2", {classes}}}),
        inputs_(inputs),
        hidden_(hidden),
        classes_(classes) {
    muster::random_stream random(1);
    for (const std::size_t weights : {std::size_t{0}, std::size_t{2}}) {
      const double deviation = std::sqrt(2.0 / static_cast<double>(weights == 0 ? inputs_ : hidden_));
      for (float& weight : arena.parameter(weights)) weight = static_cast<float>(random.normal() * deviation);
    }
  }

  /// Sums the gradients of the batch's samples. muster divides by their number over all ranks.
  void forward_backward(const muster::minibatch& batch, muster::backward_pass& pass) {
    const auto w1 = pass.parameter(0), b1 = pass.parameter(1), w2 = pass.parameter(2), b2 = pass.parameter(3);
    const auto g1 = pass.gradient(0), gb1 = pass.gradient(1), g2 = pass.gradient(2), gb2 = pass.gradient(3);
    const auto pixels = batch.values<std::uint8_t>();
    std::vector<float> x(inputs_), h(hidden_), p(classes_), back(hidden_);
    if (!pass.adds(0)) pass.clear();
    losses_ = hits_ = 0;
    samples_ = static_cast<double>(batch.samples.size());
    for (std::size_t s = 0; s < batch.samples.size(); ++s) {
      for (std::size_t i = 0; i < inputs_; ++i) x[i] = static_cast<float>(pixels[s * inputs_ + i]) / 255.0f;
      for (std::size_t k = 0; k < hidden_; ++k) h[k] = std::max(0.0f, b1[k] + dot(&w1[k * inputs_], x));
      for (std::size_t c = 0; c < classes_; ++c) p[c] = b2[c] + dot(&w2[c * hidden_], h);
      const auto label = muster::class_of(batch.labels[s], classes_);
      const float highest = *std::ranges::max_element(p);
      hits_ += p[label] == highest ? 1 : 0;
      float all = 0;
      for (float& probability : p) all += probability = std::exp(probability - highest);
      for (float& probability : p) probability /= all;
      losses_ -= std::log(std::max(p[label], 1e-30f));

      p[label] -= 1;  // The gradient of the loss with respect to the input of softmax.
      std::ranges::fill(back, 0.0f);
      for (std::size_t c = 0; c < classes_; ++c) {
        gb2[c] += p[c];
        for (std::size_t k = 0; k < hidden_; ++k) {
          g2[c * hidden_ + k] += p[c] * h[k];
          back[k] += p[c] * w2[c * hidden_ + k];
        }
      }
      for (std::size_t k = 0; k < hidden_; ++k) {
        if (h[k] <= 0) continue;
        gb1[k] += back[k];
        for (std::size_t i = 0; i < inputs_; ++i) g1[k * inputs_ + i] += back[k] * x[i];
      }
    }
  }

  /// Statistics of this rank's last batch: number of samples, mean loss, and share of correct samples.
  [[nodiscard]] double samples() const { return samples_; }
  [[nodiscard]] double loss() const { return losses_ / std::max(samples_, 1.0); }
  [[nodiscard]] double accuracy() const { return hits_ / std::max(samples_, 1.0); }

 private:
  static float dot(const float* a, const std::vector<float>& b) {
    float lanes[8] = {};  // Independent sums, so that additions do not wait for each other.
    std::size_t i = 0;
    for (; i + 8 <= b.size(); i += 8)
      for (std::size_t k = 0; k < 8; ++k) lanes[k] += a[i + k] * b[i + k];
    float sum = 0;
    for (; i < b.size(); ++i) sum += a[i] * b[i];
    for (const float lane : lanes) sum += lane;
    return sum;
  }

  std::size_t inputs_, hidden_, classes_;
  double samples_ = 0, losses_ = 0, hits_ = 0;
};
