// A network: layers in the order in which they run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/train/arena.hpp>

#include "batch_norm.hpp"
#include "layers.hpp"

namespace nn {

/// The way in which a network computes. Results do not depend on it, except for rounding.
struct execution {
  std::string backend = "winograd";  ///< Implementation of convolutions.
  std::string kernels;               ///< Name in kernel_names(); empty selects the fastest.
  int threads = 1;                   ///< Number of threads for a batch. Results are bitwise equal for any number.
};

/// The options of a convolution layer.
struct convolve_options {
  std::size_t channels = 1, kernel = 3, stride = 1, padding = 0;
  bool bias = false;
};

/// A chain of layers, built front to back by the functions below. Each function returns the input of the next layer.
///
///     nn::network<float> net({32, 32, 3});
///     auto& hidden = net.relu(net.normalise(net.convolve(net.input(), {.channels = 16, .kernel = 3, .padding = 1})));
///     net.finish(net.dense(net.average(hidden), 10));
///     muster::arena arena(context, net.shapes());
///     net.bind(arena);
///     net.initialise(seed);
///
/// Its parameters are views of an arena, or of any other memory. The network owns the activations. It is used by one
/// thread at a time, which counts as the network's first thread.
template <class T>
class network {
 public:
  explicit network(const extent& input, const execution& execution = {});
  network(const network&) = delete;

  // Construction.
  [[nodiscard]] activation<T>& input() noexcept { return *activations_.front(); }
  activation<T>& convolve(activation<T>& in, const convolve_options& options);
  activation<T>& dense(activation<T>& in, std::size_t size);
  /// Applies in place: all layers that read `in` read it normalised (normalise()), or rectified as well (relu()).
  activation<T>& normalise(activation<T>& in);
  activation<T>& relu(activation<T>& in) noexcept;
  /// Returns a normalised and rectified view of `in`, and leaves `in` unchanged.
  activation<T>& normalised_view(activation<T>& in);
  activation<T>& add(activation<T>& a, activation<T>& b);
  activation<T>& pad_shortcut(activation<T>& in, std::size_t channels, std::size_t stride);
  activation<T>& max(activation<T>& in, const pool_window& window);
  activation<T>& average(activation<T>& in);
  activation<T>& sigmoid(activation<T>& in);
  activation<T>& drop(activation<T>& in, double probability);
  /// Declares `out` to be the logits. No layer may be added afterwards.
  void finish(activation<T>& out);

  // Parameters. The backward pass completes their gradients in the reverse order.
  [[nodiscard]] std::size_t parameter_count() const noexcept;
  [[nodiscard]] std::vector<muster::tensor_shape> shapes() const;
  [[nodiscard]] const std::deque<parameter<T>>& parameters() const noexcept { return parameters_; }
  void bind(std::size_t index, std::span<T> values, std::span<T> gradient);
  void bind(muster::arena& arena) requires std::same_as<T, float>;
  /// Sets all parameters to their initial values, which depend only on the seed.
  void initialise(std::uint64_t seed);

  /// Returns the running means and variances for all batch normalisations in one array. The forward pass of every
  /// training step changes this array.
  [[nodiscard]] std::span<T> statistics() noexcept { return statistics_; }

  // Computation. Returns the logits of `now.images` images, valid until the next pass. `images` must stay readable
  // until the end of the backward pass.
  std::span<const T> forward(std::span<const T> images, const pass& now);
  /// Runs the backward pass from the gradient of the logits, and adds to the gradients of the parameters.
  void backward(std::span<const T> logits_gradient, const pass& now);

  [[nodiscard]] const extent& input_shape() const noexcept { return activations_.front()->shape(); }
  [[nodiscard]] std::size_t classes() const noexcept { return output_->shape().size(); }
  /// Returns the floating-point operations of a training step for each image: forward, and backward to data and
  /// weights, of convolutions alone.
  [[nodiscard]] double operations() const noexcept { return operations_; }

 private:
  activation<T>& make(const extent& shape);
  parameter<T>& make_parameter(std::string name, std::vector<std::size_t> extents, start initialisation,
                               double fan = 1);
  batch_norm<T>& make_norm(std::size_t channels);
  template <class Layer, class... Arguments>
  Layer& add_layer(Arguments&&... arguments);
  void reserve(std::size_t images);

  execution execution_;
  lanes team_;
  lane_sums<T> gradient_sums_;
  std::vector<std::shared_ptr<workspace<T>>> work_;  // Workspaces of the threads.
  const kernel_set<T>* kernels_;
  std::deque<parameter<T>> parameters_;
  std::vector<std::unique_ptr<activation<T>>> activations_;
  std::vector<std::unique_ptr<batch_norm<T>>> norms_;
  std::vector<std::unique_ptr<layer<T>>> layers_;
  std::vector<sum_layer<T>*> sums_;
  std::vector<T> statistics_;
  activation<T>* output_ = nullptr;
  std::size_t reserved_ = 0;
  std::size_t convolutions_ = 0, denses_ = 0, dropouts_ = 0;
  double operations_ = 0;
};

}  // namespace nn
