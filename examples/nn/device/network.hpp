// A network with its activations and parameters in a device's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include <muster/core/device/memory.hpp>
#include <muster/core/device/stream.hpp>
#include <muster/train/device/device_arena.hpp>

#include "../loss.hpp"
#include "../network.hpp"
#include "convolution.hpp"
#include "recorded.hpp"

namespace nn::device {

template <class A>
class step;
template <class A>
class convolve_step;
class norm;
struct pass_on_device;

/// The output of a layer for a whole batch, and its gradient. In contrast to the host's nn::activation, the values that
/// readers receive, normalised and rectified, are stored in memory of their own.
template <class A>
struct activation {
  explicit activation(const extent& of) : size(of), used(of.channels) {}
  activation(const activation&) = delete;
  activation& operator=(const activation&) = delete;

  [[nodiscard]] const extent& shape() const noexcept { return size; }
  [[nodiscard]] A* raw() noexcept { return raw_values.span().data(); }
  /// Returns the values that readers receive.
  [[nodiscard]] A* values() noexcept { return read_values.size() > 0 ? read_values.span().data() : raw(); }
  /// Returns the gradient of the values that readers receive; later the gradient of the raw values, in the same memory.
  /// Null for the network's input.
  [[nodiscard]] A* gradient() noexcept { return slopes.span().data(); }

  extent size;
  std::size_t used;  ///< Number of used channels; the channels behind them are zeros, for matrix units.
  norm* normalised = nullptr;
  bool rectified = false;
  bool outside = false;
  bool folded = false;  ///< Set when the only reader, a sum, applies the normalisation.
  bool is_sum = false, is_view = false;
  bool has_function = false;          ///< Set when a separate step normalises or rectifies the activation.
  std::size_t readers = 0, sums = 0;  ///< Number of layers that read the activation, and number of sums among them.
  bool gradient_written = false;      ///< Set by a later layer, while the network is being finished.
  muster::device_buffer<A> raw_values, read_values, slopes;
};

/// A network with the layers of nn::network, built by the same functions and with the same parameters in the same
/// order, on the current device. Activations are floats or bfloat16; parameters, their gradients, statistics and sums
/// are floats. A pass is recorded once for each number of images, and started as a whole (a CUDA graph), unless
/// `pass::ready` is set. The network allocates the activations of the largest batch. Used by one thread at a time.
///
/// Results are bitwise reproducible on one kind of device.
template <class A>
class network {
 public:
  using activation_type = activation<A>;

  network(const extent& input, multiplication precision, muster::device_stream_ref stream);
  network(const network&) = delete;
  network& operator=(const network&) = delete;
  ~network();

  // Construction: see nn::network. Throws muster::configuration_error for an unsupported layer.
  [[nodiscard]] activation<A>& input() noexcept { return activations_.front(); }
  activation<A>& convolve(activation<A>& in, const convolve_options& options);
  activation<A>& dense(activation<A>& in, std::size_t size);
  activation<A>& normalise(activation<A>& in);
  activation<A>& relu(activation<A>& in) noexcept;
  activation<A>& normalised_view(activation<A>& in);
  activation<A>& add(activation<A>& a, activation<A>& b);
  activation<A>& pad_shortcut(activation<A>& in, std::size_t channels, std::size_t stride);
  activation<A>& max(activation<A>& in, const pool_window& window);
  activation<A>& average(activation<A>& in);
  activation<A>& sigmoid(activation<A>& in);
  activation<A>& drop(activation<A>& in, double probability);
  void finish(activation<A>& out);

  /// Uses the parameters of `arena`, which was made for the host's network of the same layers and uses the same stream.
  /// `statistics` are the running statistics of the batch normalisations, on the host; every training pass reads and
  /// writes them. Both must outlive the network.
  void bind(muster::device_arena& arena, std::span<float> statistics);

  /// Puts a training pass on the stream, which adds the gradients of scale * the loss of these images to the arena's
  /// gradients. Copies its arguments and does not wait. Throws muster::data_error for a label outside the classes.
  /// Calls `now.ready` with a parameter once the work for its gradient is on the stream.
  void train(std::span<const float> images, std::span<const float> labels, double scale, const pass& now);
  /// Waits for the training pass, and returns the sums over its images.
  totals finish_training();
  /// Returns the logits of images, by the running statistics; valid until the next call.
  std::span<const float> predict(std::span<const float> images, std::size_t count);

 private:
  /// A convolution, or a dense layer, and its parameters.
  struct weighted {
    convolve_step<A>* of;
    convolution_shape shape;  ///< Shape used in the computation.
    std::size_t in, out;      ///< Numbers of channels of the parameter.
    std::size_t weights;
    std::optional<std::size_t> bias;
  };

  activation<A>& make(const extent& shape);
  activation<A>& make_weighted(activation<A>& in, const convolution_shape& shape, std::size_t used,
                               std::size_t out_channels, bool bias);
  norm& make_norm(std::size_t channels);
  void reserve(std::size_t images);
  void forward(const pass_on_device& now, std::span<const float> images);
  void backward(const pass_on_device& now, const pass& of);

  muster::device_stream_ref stream_;
  extent given_;  // Extent of an image as passed in; the input may have more channels, filled with zeros.
  convolutions<A> convolutions_;
  std::deque<activation<A>> activations_;
  std::deque<norm> norms_;
  std::vector<std::unique_ptr<step<A>>> steps_;
  std::vector<activation<A>*> written_;  // Activations written by each step.
  std::vector<weighted> weighted_;
  activation<A>* output_ = nullptr;
  std::size_t dropouts_ = 0, parameters_ = 0, widest_ = 1, weights_size_ = 0, reserved_ = 0;
  std::set<std::size_t> prepared_;

  muster::device_arena* arena_ = nullptr;
  std::span<float> statistics_;
  muster::device_buffer<float> device_statistics_, images_, labels_, logits_;
  muster::device_buffer<double> totals_;
  muster::pinned_buffer<float> host_statistics_, host_images_, host_labels_, host_logits_;
  muster::pinned_buffer<double> host_totals_;
  // The weights are stored first by out-channel, and then by in-channel.
  muster::device_buffer<A> weights_, weight_gradients_;
  muster::device_buffer<std::int32_t> weight_places_;
  std::unique_ptr<column_scratch> scratch_;
  recorded_work recorded_;
  std::size_t images_under_way_ = 0;
};

}  // namespace nn::device
