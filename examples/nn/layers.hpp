// The layers of the models here, each from activations to an activation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "activation.hpp"
#include "convolution.hpp"
#include "lanes.hpp"
#include "parameters.hpp"
#include "pass.hpp"

namespace nn {

/// A step of a network. Its forward pass reads its inputs and writes its output. Its backward pass reads the gradient
/// of the output and writes, or adds to, the gradients of the inputs and of its parameters. Both passes also run with a
/// batch of zero images.
template <class T>
class layer {
 public:
  /// Constructs a layer whose batch is divided into lanes by the number of pixels of `out`.
  layer(lanes& team, const activation<T>& out) : team_(&team), pixels_(out.shape().height * out.shape().width) {}
  layer(const layer&) = delete;
  virtual ~layer() = default;
  virtual void reserve(std::size_t) {}
  virtual void forward(const pass& now) = 0;
  virtual void backward(const pass& now) = 0;

 protected:
  [[nodiscard]] const lanes& team() const noexcept { return *team_; }
  [[nodiscard]] std::size_t pixels() const noexcept { return pixels_; }
  /// Calls body(lane, first, last) on each lane's images, several lanes at once.
  template <class Body>
  void over_lanes(const pass& now, const Body& body) const {
    team_->run(lanes::count(now.images, pixels_), now.images, body);
  }
  /// Calls body(image, lane, scratch), with scratch memory that a lane keeps from image to image.
  template <class Body>
  void over_images(const pass& now, const Body& body) const {
    over_lanes(now, [&](std::size_t lane, std::size_t first, std::size_t last) {
      std::vector<T> scratch;
      for (std::size_t image = first; image < last; ++image) body(image, lane, scratch);
    });
  }

 private:
  lanes* team_;
  std::size_t pixels_;
};

/// A layer's right to read an activation and to write its gradient.
template <class T>
class input_of {
 public:
  explicit input_of(activation<T>& read) : read_(&read), reader_(read.attach()) {}

  [[nodiscard]] activation<T>* operator->() const noexcept { return read_; }
  [[nodiscard]] activation<T>& operator*() const noexcept { return *read_; }
  /// Returns true if the gradient is added to the gradients of other readers.
  [[nodiscard]] bool adds() const noexcept { return read_->turn_of(reader_).adds; }
  /// Returns true if no other reader writes the gradient afterwards.
  [[nodiscard]] bool completes() const noexcept { return read_->turn_of(reader_).completes; }
  /// Marks the gradient of an image as written. `masked` states that it is already zero wherever the input was
  /// rectified to zero.
  void written(std::size_t image, std::size_t lane, bool masked = false) const {
    if (completes()) read_->gradient_written(image, lane, masked && !adds());
  }
  void all_written(const pass& now) const {
    if (read_->wants_gradient() && completes()) read_->all_gradients_written(now);
  }

 private:
  activation<T>* read_;
  std::size_t reader_;
};

template <class T>
class convolution_layer final : public layer<T> {
 public:
  /// Constructs the layer. `bias` may be null. There is one convolution for each thread; all share `sums` with the
  /// convolutions of other layers.
  convolution_layer(lanes& team, activation<T>& in, activation<T>& out, parameter<T>& weights, parameter<T>* bias,
                    std::vector<std::unique_ptr<convolution<T>>> convolutions, lane_sums<T>& sums)
      : layer<T>(team, out),
        in_(in),
        out_(&out),
        weights_(&weights),
        bias_(bias),
        convolutions_(std::move(convolutions)),
        sums_(&sums) {}
  void forward(const pass& now) override;
  void backward(const pass& now) override;

 private:
  /// The gradients that a part of the backward pass computes.
  struct wanted {
    bool weights, data;
  };

  /// Returns this thread's convolution, prepared with the weights of the pass.
  convolution<T>& mine(std::vector<char>& begun) const;
  /// Runs the backward pass for images [first, last), all in one lane, on this thread. The sums belong to the lane.
  void backward_lane(convolution<T>& backend, std::size_t lane, std::size_t first, std::size_t last, wanted gradients,
                     T* sums, T* bias_sums) const;

  input_of<T> in_;
  activation<T>* out_;
  parameter<T>* weights_;
  parameter<T>* bias_;
  std::vector<std::unique_ptr<convolution<T>>> convolutions_;
  lane_sums<T>* sums_;
  lane_sums<T> bias_sums_;
};

/// A dense layer: y = x W + b on all numbers of an image, by Eigen and on one thread.
template <class T>
class dense_layer final : public layer<T> {
 public:
  dense_layer(lanes& team, activation<T>& in, activation<T>& out, parameter<T>& weights, parameter<T>& bias)
      : layer<T>(team, out), in_(in), out_(&out), weights_(&weights), bias_(&bias) {}
  void forward(const pass& now) override;
  void backward(const pass& now) override;

 private:
  void gather(const pass& now);

  input_of<T> in_;
  activation<T>* out_;
  parameter<T>* weights_;
  parameter<T>* bias_;
  std::vector<T> rows_, slopes_;
};

/// A sum a + b of equal shapes, at the end of a shortcut. Both terms share the gradient of the sum, and so its memory,
/// unless another layer writes the term's gradient first.
template <class T>
class sum_layer final : public layer<T> {
 public:
  sum_layer(lanes& team, activation<T>& a, activation<T>& b, activation<T>& out)
      : layer<T>(team, out), a_(a), b_(b), out_(&out) {}
  /// Shares gradients where possible. Called after the network is complete.
  void connect();
  void forward(const pass& now) override;
  void backward(const pass& now) override;

 private:
  input_of<T> a_, b_;
  activation<T>* out_;
};

/// A shortcut without parameters between different shapes, option A of He et al. 2015: every `stride`-th pixel of every
/// `stride`-th row, and zeros for the new channels, half before and half behind the others.
template <class T>
class padded_shortcut final : public layer<T> {
 public:
  padded_shortcut(lanes& team, activation<T>& in, activation<T>& out, std::size_t stride)
      : layer<T>(team, out), in_(in), out_(&out), stride_(stride) {}
  void forward(const pass& now) override;
  void backward(const pass& now) override;

 private:
  input_of<T> in_;
  activation<T>* out_;
  std::size_t stride_;
};

/// A second function of an activation's values: pre-activation residual networks normalise the input of a block but not
/// the shortcut around the block.
template <class T>
class view_layer final : public layer<T> {
 public:
  view_layer(lanes& team, activation<T>& in, activation<T>& out) : layer<T>(team, out), in_(in), out_(&out) {
    out.see(in);
  }
  void forward(const pass&) override {}
  void backward(const pass& now) override;

 private:
  input_of<T> in_;
  activation<T>* out_;
};

/// The maximum of kernel x kernel pixels; the first pixel among equal ones is selected.
template <class T>
class max_pool final : public layer<T> {
 public:
  max_pool(lanes& team, activation<T>& in, activation<T>& out, const pool_window& window)
      : layer<T>(team, out), in_(in), out_(&out), window_(window) {}
  void reserve(std::size_t images) override { taps_.resize(images * out_->shape().size()); }
  void forward(const pass& now) override;
  void backward(const pass& now) override;

 private:
  input_of<T> in_;
  activation<T>* out_;
  pool_window window_;
  std::vector<T> taps_;  // Index in the window for each output's maximum.
};

/// The mean over all pixels in each channel.
template <class T>
class average_pool final : public layer<T> {
 public:
  average_pool(lanes& team, activation<T>& in, activation<T>& out) : layer<T>(team, in), in_(in), out_(&out) {}
  void forward(const pass& now) override;
  void backward(const pass& now) override;

 private:
  input_of<T> in_;
  activation<T>* out_;
};

/// An element-wise function, whose slope follows from its result.
template <class T>
class pointwise_layer : public layer<T> {
 public:
  pointwise_layer(lanes& team, activation<T>& in, activation<T>& out) : layer<T>(team, out), in_(in), out_(&out) {}
  void forward(const pass& now) final;
  void backward(const pass& now) final;

 private:
  /// Replaces the numbers of an image by the results.
  virtual void apply(const pass& now, std::size_t image, std::span<T> values) const = 0;
  /// Multiplies `slopes` by the slopes of the function, for an image with these results.
  virtual void multiply(const pass& now, std::size_t image, const T* results, std::span<T> slopes) const = 0;

  input_of<T> in_;
  activation<T>* out_;
};

/// The sigmoid function 1 / (1 + exp(-x)).
template <class T>
class sigmoid_layer final : public pointwise_layer<T> {
 public:
  using pointwise_layer<T>::pointwise_layer;

 private:
  void apply(const pass& now, std::size_t image, std::span<T> values) const override;
  void multiply(const pass& now, std::size_t image, const T* results, std::span<T> slopes) const override;
};

/// Sets a part of an image's numbers to zero and scales the other numbers up. The selection is a function of the pass's
/// key, the sample and the number of the layer, and therefore independent of the rank or device that processes the
/// sample. A pass that does not train changes nothing. Throws muster::configuration_error if the pass has no samples.
template <class T>
void drop_out(const pass& now, double probability, std::uint64_t layer, std::size_t image, std::span<T> values);

/// Dropout (Srivastava et al. 2014), by `drop_out`.
template <class T>
class dropout final : public pointwise_layer<T> {
 public:
  dropout(lanes& team, activation<T>& in, activation<T>& out, double probability, std::uint64_t number)
      : pointwise_layer<T>(team, in, out), probability_(probability), number_(number) {}

 private:
  void apply(const pass& now, std::size_t image, std::span<T> values) const override;
  void multiply(const pass& now, std::size_t image, const T* results, std::span<T> slopes) const override;

  double probability_;
  std::uint64_t number_;
};

}  // namespace nn
