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

/// y = scale * (x - mean) / sqrt(variance + epsilon) + shift for each channel, with the mean and variance of the batch:
/// of this rank's part of it, or of all ranks' together (pass::statistics), where a rank without images takes part.
///
/// Sums are taken image by image, relative to a number of the lane's images so that nothing cancels, and added up in
/// double. The running statistics, for evaluation, are the network's.
template <class T>
class batch_norm {
 public:
  static constexpr T epsilon = T(1e-5);
  static constexpr T momentum = T(0.1);  ///< of a step's statistics in the running ones

  /// `scale` and `shift` are parameters of `channels` elements.
  batch_norm(std::size_t channels, parameter<T>& scale, parameter<T>& shift, const kernel_set<T>& kernels);

  // Forward.
  void begin(const pass& now);
  void see(const image_view<const T>& image, std::size_t lane);
  /// Collective with pass::statistics.
  void finish(const pass& now);
  [[nodiscard]] const T* scale() const noexcept { return scale_.data(); }
  [[nodiscard]] const T* shift() const noexcept { return shift_.data(); }

  // Backward.
  [[nodiscard]] const T* mean() const noexcept { return mean_.data(); }
  [[nodiscard]] T* begin_slopes(std::size_t lane) noexcept { return lanes_[lane].sum.data(); }
  [[nodiscard]] T* products(std::size_t lane) noexcept { return lanes_[lane].products.data(); }
  void end_slopes(std::size_t lane) noexcept;
  /// Collective with pass::statistics. The parameters' gradients are added to.
  void finish_backward(const pass& now);
  [[nodiscard]] const T* slope_factor() const noexcept { return slope_factor_.data(); }
  [[nodiscard]] const T* value_factor() const noexcept { return value_factor_.data(); }
  [[nodiscard]] const T* offset() const noexcept { return offset_.data(); }

  [[nodiscard]] std::size_t channels() const noexcept { return channels_; }
  /// Where the running means and variances are, `channels()` of each.
  void bind(std::span<T> running) noexcept { running_ = running; }

 private:
  struct lane_state {
    std::vector<T> pivot, sum, products;  // of an image
    std::vector<double> totals;           // of the lane: two sums a channel
    double pixels = 0;
  };

  void set_function(std::span<const double> mean, std::span<const double> variance);

  std::size_t channels_;
  parameter<T>* gamma_;
  parameter<T>* beta_;
  const kernel_set<T>* kernels_;
  std::span<T> running_;

  std::array<lane_state, lanes::most> lanes_;
  std::vector<T> scale_, shift_, mean_, inverse_;  // of the batch
  std::vector<T> slope_factor_, value_factor_, offset_;
  double pixels_ = 0;
  bool training_ = true;
};

}  // namespace nn
