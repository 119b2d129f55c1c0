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

/// A step of a network. Its forward pass reads its inputs and writes its output; its backward pass reads the gradient
/// of the output and writes, or adds to, those of the inputs and of its parameters. Both take part with no image at
/// all.
template <class T>
class layer {
 public:
  /// The batch is cut for an output of so many pixels.
  layer(lanes& team, const activation<T>& out) : team_(&team), pixels_(out.shape().height * out.shape().width) {}
  layer(const layer&) = delete;
  virtual ~layer() = default;
  virtual void reserve(std::size_t) {}
  virtual void forward(const pass& now) = 0;
  virtual void backward(const pass& now) = 0;

 protected:
  [[nodiscard]] const lanes& team() const noexcept { return *team_; }
  [[nodiscard]] std::size_t pixels() const noexcept { return pixels_; }
  /// Calls body(lane, first, last) on the images of each lane, several at once.
  template <class Body>
  void over_lanes(const pass& now, const Body& body) const {
    team_->run(lanes::count(now.images, pixels_), now.images, body);
  }
  /// Calls body(image, lane, scratch), with what a lane keeps for its next image.
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

/// A layer's claim on what it reads.
template <class T>
class input_of {
 public:
  explicit input_of(activation<T>& read) : read_(&read), reader_(read.attach()) {}

  [[nodiscard]] activation<T>* operator->() const noexcept { return read_; }
  [[nodiscard]] activation<T>& operator*() const noexcept { return *read_; }
  /// Whether its gradient is added to what other readers wrote.
  [[nodiscard]] bool adds() const noexcept { return read_->turn_of(reader_).adds; }
  /// Whether no other reader writes after it.
  [[nodiscard]] bool completes() const noexcept { return read_->turn_of(reader_).completes; }
  /// The gradient of an image is written; `masked`, if it is zero already wherever the input was rectified to zero.
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
  /// `bias` may be null; `how` is one convolution for each thread, which share `sums` with those of other layers.
  convolution_layer(lanes& team, activation<T>& in, activation<T>& out, parameter<T>& weights, parameter<T>* bias,
                    std::vector<std::unique_ptr<convolution<T>>> how, lane_sums<T>& sums)
      : layer<T>(team, out), in_(in), out_(&out), weights_(&weights), bias_(bias), how_(std::move(how)), sums_(&sums) {}
  void forward(const pass& now) override;
  void backward(const pass& now) override;

 private:
  /// Which gradients a part of the backward pass is for.
  struct wanted {
    bool weights, data;
  };

  /// This thread's, ready for the weights of the pass.
  convolution<T>& mine(std::vector<char>& begun) const;
  /// For images [first, last), all of a lane, on this thread. The sums are the lane's.
  void backward_lane(convolution<T>& how, std::size_t lane, std::size_t first, std::size_t last, wanted what, T* sums,
                     T* bias_sums) const;

  input_of<T> in_;
  activation<T>* out_;
  parameter<T>* weights_;
  parameter<T>* bias_;
  std::vector<std::unique_ptr<convolution<T>>> how_;
  lane_sums<T>* sums_;
  lane_sums<T> bias_sums_;
};

/// y = x W + b on all numbers of an image, by Eigen and on one thread.
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

/// a + b, of one shape: where a shortcut comes back. Both have the gradient of the sum, and so its memory, wherever
/// no other layer writes it first.
template <class T>
class sum_layer final : public layer<T> {
 public:
  sum_layer(lanes& team, activation<T>& a, activation<T>& b, activation<T>& out)
      : layer<T>(team, out), a_(a), b_(b), out_(&out) {}
  /// After the network is complete: shares gradients where that can be.
  void connect();
  void forward(const pass& now) override;
  void backward(const pass& now) override;

 private:
  input_of<T> a_, b_;
  activation<T>* out_;
};

/// A shortcut between unlike shapes without parameters, option A of He et al. 2015: every `stride`-th pixel of every
/// `stride`-th row, and zeros for the channels that are new, half of them before and half behind.
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

/// Another function of what an activation holds: pre-activation residual networks normalise what goes into a block but
/// not what goes around it.
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

/// The largest of kernel x kernel pixels, of the first of equal ones.
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
  std::vector<T> taps_;  // for each output, which number of its window it is
};

/// The mean over all pixels of each channel.
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

/// A function of each number by itself, whose result says its slope.
template <class T>
class pointwise_layer : public layer<T> {
 public:
  pointwise_layer(lanes& team, activation<T>& in, activation<T>& out) : layer<T>(team, out), in_(in), out_(&out) {}
  void forward(const pass& now) final;
  void backward(const pass& now) final;

 private:
  /// Puts the results of an image in the place of its numbers.
  virtual void apply(const pass& now, std::size_t image, std::span<T> values) const = 0;
  /// Multiplies by the slopes, of an image with these results.
  virtual void multiply(const pass& now, std::size_t image, const T* results, std::span<T> slopes) const = 0;

  input_of<T> in_;
  activation<T>* out_;
};

/// 1 / (1 + exp(-x)).
template <class T>
class sigmoid_layer final : public pointwise_layer<T> {
 public:
  using pointwise_layer<T>::pointwise_layer;

 private:
  void apply(const pass& now, std::size_t image, std::span<T> values) const override;
  void multiply(const pass& now, std::size_t image, const T* results, std::span<T> slopes) const override;
};

/// Sets a part of an image's numbers to zero and scales the rest up. Which ones is a function of the pass's key, the
/// sample and the number of the layer: the same whatever the rank, or the device, that has the sample. Nothing in a
/// pass that does not train. Throws muster::configuration_error without the samples.
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
