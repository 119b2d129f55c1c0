// Batch normalisation (Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels.hpp"
#include "lanes.hpp"
#include "parameters.hpp"
#include "pass.hpp"

namespace nn {

/// A layer of batch normalisation: y = scale * (x - mean) / sqrt(variance + epsilon) + shift for each channel. Mean and
/// variance are computed over this rank's part of the batch, or over all ranks' batches (pass::statistics). A
/// rank without images takes part in the latter.
///
/// Sums are taken image by image, relative to a pivot from the lane's images to avoid cancellation, and accumulated in
/// double. The network owns the running statistics, which evaluation uses.
template <class T>
class batch_norm {
 public:
  static constexpr T epsilon = T(1e-5);
  static constexpr T momentum = T(0.1);  ///< Weight of a step's statistics in the running statistics.

  /// Constructs the layer. `scale` and `shift` are parameters of `channels` elements.
  batch_norm(std::size_t channels, parameter<T>& scale, parameter<T>& shift, const kernel_set<T>& kernels);

  // Forward pass.
  /// Starts a pass. Without training the function follows from the running statistics.
  void begin(const pass& now);
  /// Adds an image to the statistics of the batch, in the sums of `lane`.
  void add_image(const image_view<const T>& image, std::size_t lane);
  /// Finishes the statistics of the batch. Collective with pass::statistics.
  void finish(const pass& now);
  [[nodiscard]] const T* scale() const noexcept { return scale_.data(); }
  [[nodiscard]] const T* shift() const noexcept { return shift_.data(); }

  // Backward pass.
  [[nodiscard]] const T* mean() const noexcept { return mean_.data(); }
  /// Returns the sums of an image's slopes for each channel, to which the caller adds.
  [[nodiscard]] T* begin_slopes(std::size_t lane) noexcept { return lanes_[lane].sum.data(); }
  /// Returns the sums of slope * (x - mean) in the same way.
  [[nodiscard]] T* products(std::size_t lane) noexcept { return lanes_[lane].products.data(); }
  /// Adds an image's sums to the totals of the lane.
  void end_slopes(std::size_t lane) noexcept;
  /// Adds to the gradients of the parameters. Collective with pass::statistics.
  void finish_backward(const pass& now);
  /// Returns factors of the gradient for each channel: slope_factor * slope + value_factor * x + offset.
  [[nodiscard]] const T* slope_factor() const noexcept { return slope_factor_.data(); }
  [[nodiscard]] const T* value_factor() const noexcept { return value_factor_.data(); }
  [[nodiscard]] const T* offset() const noexcept { return offset_.data(); }

  [[nodiscard]] std::size_t channels() const noexcept { return channels_; }
  /// Sets the memory of the running means and variances, `channels()` numbers each.
  void bind(std::span<T> running) noexcept { running_ = running; }

 private:
  struct lane_state {
    std::vector<T> pivot, sum, products;  // Sums over an image.
    std::vector<double> totals;           // Sums over the lane, two for each channel.
    double pixels = 0;
  };

  void set_function(std::span<const double> mean, std::span<const double> variance);

  std::size_t channels_;
  parameter<T>* gamma_;
  parameter<T>* beta_;
  const kernel_set<T>* kernels_;
  std::span<T> running_;

  std::array<lane_state, lanes::most> lanes_;
  std::vector<T> scale_, shift_, mean_, inverse_;  // Values of the current batch.
  std::vector<T> slope_factor_, value_factor_, offset_;
  double pixels_ = 0;
  bool training_ = true;
};

}  // namespace nn
