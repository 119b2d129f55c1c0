// The steps of a network on a device, in the order in which they run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <muster/train/device/device_arena.hpp>

#include "convolution.hpp"
#include "kernels.hpp"
#include "launch.hpp"
#include "network.hpp"

namespace nn::device {

/// Batch normalisation: its parameters, and the arrays of a pass.
class norm {
 public:
  norm(std::size_t width, std::size_t scale, std::size_t shift)
      : channels(width), gamma(scale), beta(shift), memory_(7 * width) {}

  void bind(muster::device_arena& arena, float* running) {
    float* next = memory_.span().data();
    const auto take = [&] { return std::exchange(next, next + channels); };
    arrays.gamma = arena.parameter(gamma).data();
    arrays.beta = arena.parameter(beta).data();
    arrays.gamma_gradient = arena.gradient(gamma).data();
    arrays.beta_gradient = arena.gradient(beta).data();
    arrays.running = running;
    for (float** each : {&arrays.mean, &arrays.inverse, &arrays.scale, &arrays.shift, &arrays.slope_factor,
                         &arrays.value_factor, &arrays.offset})
      *each = take();
  }

  std::size_t channels, gamma, beta;  ///< The last two are indices of parameters.
  norm_arrays arrays;

 private:
  muster::device_buffer<float> memory_;
};

/// The settings, stream and scratch memory for one pass.
struct pass_on_device {
  std::size_t images;
  bool training;
  muster::device_stream_ref stream;
  column_scratch* scratch;
};

/// An input of a step, and the step's position among the layers that write the input's gradient.
template <class A>
struct reader {
  activation<A>* from;
  bool adds = false;  ///< True if later layers wrote the gradient before.

  explicit reader(activation<A>& read) : from(&read) { ++read.readers; }
  activation<A>* operator->() const noexcept { return from; }
  /// Reserves this reader's position. Called in the order of the backward pass.
  void take_turn() noexcept { adds = std::exchange(from->gradient_written, true); }
};

template <class A>
class step {
 public:
  step() = default;
  step(const step&) = delete;
  step& operator=(const step&) = delete;
  virtual ~step() = default;

  virtual void take_turns() = 0;
  /// Prepares a training pass. Called on the host.
  virtual void begin(const pass&) {}
  /// Reserves memory for a number of images.
  virtual void reserve(std::size_t) {}
  /// Measures settings for a number of images, once memory is reserved. May write to this memory.
  virtual void prepare(std::size_t) {}
  virtual void forward(const pass_on_device& now) = 0;
  virtual void backward(const pass_on_device& now) = 0;

  std::vector<std::size_t> completes{};       ///< Parameters whose gradients its backward pass completes.
  std::size_t first_weight = 0, weights = 0;  ///< Position and size, for its packed weights, in the common array.
};

template <class A>
class convolve_step final : public step<A> {
 public:
  convolve_step(activation<A>& in, activation<A>& out, std::unique_ptr<convolver<A>> convolver)
      : in_(in), out_(&out), convolver_(std::move(convolver)) {}

  /// Sets the memory of the parameters. `bias` is null for a convolution without a bias.
  void bind(const packed_weights<A>& all, A* gradients, const float* bias, float* bias_gradient) {
    weights_ = {all.by_out + this->first_weight, all.by_in + this->first_weight};
    gradients_ = gradients + this->first_weight;
    bias_ = bias;
    bias_gradient_ = bias_gradient;
  }
  void take_turns() override { in_.take_turn(); }
  void prepare(std::size_t images) override {
    convolver_->prepare(images, in_->values(), weights_, out_->raw(), in_->gradient(), gradients_);
  }
  void forward(const pass_on_device& now) override {
    convolver_->forward(now.images, in_->values(), weights_, out_->raw());
    if (bias_ != nullptr) add_bias(bias_, size(now), out_->used, out_->raw(), now.stream);
  }
  void backward(const pass_on_device& now) override {
    convolver_->backward_weights(now.images, in_->values(), out_->gradient(), gradients_);
    if (bias_ != nullptr)
      add_bias_gradient(out_->gradient(), size(now), out_->used, bias_gradient_, *now.scratch, now.stream);
    if (!in_->outside) convolver_->backward_data(now.images, out_->gradient(), weights_, in_->gradient(), in_.adds);
  }

 private:
  [[nodiscard]] matrix_size size(const pass_on_device& now) const {
    const extent& to = out_->shape();
    return {now.images * to.height * to.width, to.channels};
  }

  reader<A> in_;
  activation<A>* out_;
  std::unique_ptr<convolver<A>> convolver_;
  packed_weights<A> weights_;
  A* gradients_ = nullptr;
  const float* bias_ = nullptr;
  float* bias_gradient_ = nullptr;
};

/// A step that reads one activation or the sum of two activations, each raw or normalised, and optionally rectifies the
/// result. This step also implements a function behind a layer. In this case it reads its output's raw values,
/// and the gradient of its input overwrites the gradient of its output.
template <class A>
class combine_step final : public step<A> {
 public:
  /// Constructs the function of the activation `of`.
  explicit combine_step(activation<A>& of) : out_(&of), is_function_(true) {
    terms_.emplace_back(of);
    --of.readers;
  }
  /// Constructs a step that computes `out` from other activations.
  combine_step(activation<A>& out, std::vector<reader<A>> terms) : terms_(std::move(terms)), out_(&out) {}

  void take_turns() override {
    for (auto& each : terms_) {
      if (!is_function_) each.take_turn();
    }
    for (const auto* each : norms()) {
      if (each != nullptr) this->completes.insert(this->completes.end(), {each->gamma, each->beta});
    }
  }
  void forward(const pass_on_device& now) override {
    const matrix_size of = size(now);
    const auto all = terms();
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k].norm == nullptr) continue;
      if (now.training)
        find_norm(all[k].values, of, *all[k].norm, *now.scratch, now.stream);
      else
        find_norm_from_running(of.columns, *all[k].norm, now.stream);
    }
    combine(std::span<const term<A>>(all), rectifies(), of, is_function_ ? out_->values() : out_->raw(), now.stream);
  }
  void backward(const pass_on_device& now) override {
    const auto all = terms();
    combine_backward(std::span<const term<A>>(all), rectifies(), size(now), out_->gradient(), *now.scratch, now.stream);
  }

 private:
  /// Returns true if this step rectifies. A sum may have a function behind it, which then rectifies.
  [[nodiscard]] bool rectifies() const { return out_->rectified && (is_function_ || !out_->has_function); }
  [[nodiscard]] const norm* norm_of(const reader<A>& input) const {
    if (is_function_ || !out_->is_sum) return out_->normalised;  // A view is normalised when it is read.
    return input->folded ? input->normalised : nullptr;
  }
  [[nodiscard]] std::vector<const norm*> norms() const {
    std::vector<const norm*> all;
    for (const auto& each : terms_) all.push_back(norm_of(each));
    return all;
  }
  [[nodiscard]] std::vector<term<A>> terms() const {
    std::vector<term<A>> all;
    for (const auto& each : terms_) {
      const norm* const by = norm_of(each);
      const bool raw = is_function_ || each->folded;
      all.push_back(
          {raw ? each->raw() : each->values(), by == nullptr ? nullptr : &by->arrays, each->gradient(), each.adds});
    }
    return all;
  }
  [[nodiscard]] matrix_size size(const pass_on_device& now) const {
    const extent& to = out_->shape();
    return {now.images * to.height * to.width, to.channels};
  }

  std::vector<reader<A>> terms_;
  activation<A>* out_;
  bool is_function_ = false;
};

template <class A>
class shortcut_step final : public step<A> {
 public:
  shortcut_step(activation<A>& in, activation<A>& out, std::size_t stride) : in_(in), out_(&out), stride_(stride) {}
  void take_turns() override { in_.take_turn(); }
  void forward(const pass_on_device& now) override {
    device::pad_shortcut<A>(in_->values(), now.images, in_->shape(), out_->shape(), stride_, out_->raw(), now.stream);
  }
  void backward(const pass_on_device& now) override {
    if (in_->outside) return;
    pad_shortcut_backward<A>(out_->gradient(), now.images, in_->shape(), out_->shape(), stride_, in_->gradient(),
                             in_.adds, now.stream);
  }

 private:
  reader<A> in_;
  activation<A>* out_;
  std::size_t stride_;
};

template <class A>
class max_step final : public step<A> {
 public:
  max_step(activation<A>& in, activation<A>& out, const pool_window& window) : in_(in), out_(&out), window_(window) {}
  void take_turns() override { in_.take_turn(); }
  void reserve(std::size_t images) override {
    taps_ = muster::device_buffer<std::uint8_t>(images * out_->shape().size());
  }
  void forward(const pass_on_device& now) override {
    max_pool<A>(in_->values(), now.images, in_->shape(), out_->shape(), window_, out_->raw(), taps_.span().data(),
                now.stream);
  }
  void backward(const pass_on_device& now) override {
    if (in_->outside) return;
    max_pool_backward<A>(out_->gradient(), taps_.span().data(), now.images, in_->shape(), out_->shape(), window_,
                         in_->gradient(), in_.adds, now.stream);
  }

 private:
  reader<A> in_;
  activation<A>* out_;
  pool_window window_;
  muster::device_buffer<std::uint8_t> taps_;
};

template <class A>
class average_step final : public step<A> {
 public:
  average_step(activation<A>& in, activation<A>& out) : in_(in), out_(&out) {}
  void take_turns() override { in_.take_turn(); }
  void forward(const pass_on_device& now) override {
    average_pool<A>(in_->values(), now.images, pixels(), in_->shape().channels, out_->raw(), now.stream);
  }
  void backward(const pass_on_device& now) override {
    if (in_->outside) return;
    average_pool_backward<A>(out_->gradient(), now.images, pixels(), in_->shape().channels, in_->gradient(), in_.adds,
                             now.stream);
  }

 private:
  [[nodiscard]] std::size_t pixels() const { return in_->shape().height * in_->shape().width; }

  reader<A> in_;
  activation<A>* out_;
};

template <class A>
class sigmoid_step final : public step<A> {
 public:
  sigmoid_step(activation<A>& in, activation<A>& out) : in_(in), out_(&out) {}
  void take_turns() override { in_.take_turn(); }
  void forward(const pass_on_device& now) override {
    device::sigmoid<A>(in_->values(), now.images * in_->shape().size(), out_->raw(), now.stream);
  }
  void backward(const pass_on_device& now) override {
    if (in_->outside) return;
    sigmoid_backward<A>(out_->gradient(), out_->raw(), now.images * in_->shape().size(), in_->gradient(), in_.adds,
                        now.stream);
  }

 private:
  reader<A> in_;
  activation<A>* out_;
};

/// A dropout. The host selects the numbers to drop, and copies the selection to the device with the images.
template <class A>
class drop_step final : public step<A> {
 public:
  drop_step(activation<A>& in, activation<A>& out, double probability, std::size_t number)
      : in_(in), out_(&out), probability_(probability), number_(number) {}

  void take_turns() override { in_.take_turn(); }
  void begin(const pass& now) override {
    if (probability_ == 0) return;
    const std::size_t size = in_->shape().size();
    for (std::size_t image = 0; image < now.images; ++image) {
      const auto factors = host_.span().subspan(image * size, size);
      std::ranges::fill(factors, 1.0f);
      drop_out(now, probability_, number_, image, factors);
    }
  }
  void reserve(std::size_t images) override {
    if (probability_ == 0) return;
    host_ = muster::pinned_buffer<float>(images * in_->shape().size());
    factors_ = muster::device_buffer<float>(host_.span().size());
  }
  void forward(const pass_on_device& now) override {
    const std::size_t size = now.images * in_->shape().size();
    const bool drops = now.training && probability_ > 0;
    if (drops) muster::copy(std::span<const float>(host_.span().first(size)), factors_.span().first(size), now.stream);
    multiply<A>(in_->values(), drops ? factors_.span().data() : nullptr, size, out_->raw(), false, now.stream);
  }
  void backward(const pass_on_device& now) override {
    if (in_->outside) return;
    multiply<A>(out_->gradient(), probability_ > 0 ? factors_.span().data() : nullptr, now.images * in_->shape().size(),
                in_->gradient(), in_.adds, now.stream);
  }

 private:
  reader<A> in_;
  activation<A>* out_;
  double probability_;
  std::size_t number_;
  muster::pinned_buffer<float> host_;
  muster::device_buffer<float> factors_;
};

}  // namespace nn::device
