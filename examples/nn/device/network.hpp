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
#include <muster/train/device/arena.hpp>

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

/// The output of a layer for a whole batch, and its gradient. Unlike the host's (nn::activation) it has what readers
/// see, normalised and rectified, in memory of its own.
template <class A>
struct activation {
  explicit activation(const extent& of) : size(of), used(of.channels) {}
  activation(const activation&) = delete;
  activation& operator=(const activation&) = delete;

  [[nodiscard]] const extent& shape() const noexcept { return size; }
  [[nodiscard]] A* raw() noexcept { return raw_values.span().data(); }
  /// What readers see.
  [[nodiscard]] A* values() noexcept { return read_values.size() > 0 ? read_values.span().data() : raw(); }
  /// Of what readers see, and then of the raw values, in the same place; null for what comes from outside.
  [[nodiscard]] A* gradient() noexcept { return slopes.span().data(); }

  extent size;
  std::size_t used;  ///< channels; those behind them are zeros, for matrix units
  norm* normalised = nullptr;
  bool rectified = false;
  bool outside = false;
  bool folded = false;  ///< the sum that alone reads it normalises it
  bool is_sum = false, is_view = false;
  bool has_function = false;          ///< a step of its own normalises or rectifies it
  std::size_t readers = 0, sums = 0;  ///< layers that read it, and sums among them
  bool gradient_written = false;      ///< by a later layer; as the network is finished
  muster::device_buffer<A> raw_values, read_values, slopes;
};

/// The layers of nn::network, put together by the same functions and with the same parameters in the same order, on the
/// current device. Activations are floats or bfloat16; parameters, their gradients, statistics and sums are floats. A
/// pass is recorded once for each number of images, and started as a whole (a graph of CUDA's), unless
/// `pass::ready` is set. Its memory is the activations of the largest batch. Used by one thread at a time.
///
/// The same bits in each run on one kind of device.
template <class A>
class network {
 public:
  using activation_type = activation<A>;

  network(const extent& input, multiplication how, muster::device_stream_ref stream);
  network(const network&) = delete;
  network& operator=(const network&) = delete;
  ~network();

  // Putting it together: see nn::network. Throws muster::configuration_error for what it does not have.
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

  /// Its parameters are those of `arena`, which was made for the host's network of the same layers and goes by the same
  /// stream; `statistics` are the running ones of the batch normalisations, on the host, which every training pass
  /// reads and writes. Both outlive it.
  void bind(muster::device_arena& arena, std::span<float> statistics);

  /// Puts a training pass on the stream: adds the gradients of scale * the loss of these images to the arena's. Does
  /// not wait, and has copied what it was given. Throws muster::data_error for a label that is no class. `now.ready` is
  /// told of a parameter when its gradient was put on the stream.
  void train(std::span<const float> images, std::span<const float> labels, double scale, const pass& now);
  /// Waits for it: the sums over its images.
  totals finish_training();
  /// The logits of images, by the running statistics; valid until the next call.
  std::span<const float> predict(std::span<const float> images, std::size_t count);

 private:
  /// A convolution, or a dense layer, and which parameters it has.
  struct weighted {
    convolve_step<A>* of;
    convolution_shape shape;  ///< as it is computed
    std::size_t in, out;      ///< channels that the parameter has
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
  extent given_;  // as images come; the input may have more channels, of zeros
  convolutions<A> convolutions_;
  std::deque<activation<A>> activations_;
  std::deque<norm> norms_;
  std::vector<std::unique_ptr<step<A>>> steps_;
  std::vector<activation<A>*> written_;  // by each of them
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
  muster::device_buffer<A> weights_, weight_gradients_;  // the first: by out-channel, and then by in-channel
  muster::device_buffer<std::int32_t> weight_places_;
  std::unique_ptr<column_scratch> scratch_;
  recorded_work recorded_;
  std::size_t images_under_way_ = 0;
};

}  // namespace nn::device
