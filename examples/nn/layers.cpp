#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

#include "products.hpp"

namespace nn {
namespace {

/// Sets the gradient of an image to `slope`, or adds `slope`, and marks the gradient as written.
template <class T>
void give(const input_of<T>& in, std::size_t image, std::size_t lane, const T* slope) {
  T* const to = in->gradient(image);
  const std::size_t size = in->shape().size();
  if (in.adds()) {
    for (std::size_t i = 0; i < size; ++i) to[i] += slope[i];
  } else {
    std::copy_n(slope, size, to);
  }
  in.written(image, lane);
}

/// Returns the gradient of a layer's output for one image, in `scratch` where it must be computed.
template <class T>
const T* slope_of(activation<T>& out, std::size_t image, std::vector<T>& scratch) {
  if (!out.normalised()) return out.gradient(image);
  scratch.resize(out.shape().size());
  out.read_gradient(image, out.view(scratch.data()));
  return scratch.data();
}

}  // namespace

template <class T>
convolution<T>& convolution_layer<T>::mine(std::vector<char>& begun) const {
  const std::size_t thread = this->team().thread();
  if (!std::exchange(begun[thread], char{1})) convolutions_[thread]->begin(weights_->values);
  return *convolutions_[thread];
}

template <class T>
void convolution_layer<T>::forward(const pass& now) {
  std::vector<char> begun(convolutions_.size());
  this->over_lanes(now, [&](std::size_t lane, std::size_t begin, std::size_t end) {
    auto& backend = mine(begun);
    for (std::size_t first = begin; first < end; first += backend.block()) {
      const std::size_t count = std::min(backend.block(), end - first);
      for (std::size_t k = 0; k < count; ++k) in_->read(first + k, backend.input(k));
      backend.forward(count, bias_ != nullptr ? bias_->values.data() : nullptr, out_->values(first));
      for (std::size_t k = 0; k < count; ++k) out_->written(first + k, lane);
    }
  });
  out_->all_written(now);
}

template <class T>
void convolution_layer<T>::backward_lane(convolution<T>& backend, std::size_t lane, std::size_t first, std::size_t last,
                                         wanted gradients, T* sums, T* bias_sums) const {
  // The gradient is needed only for the weights and without changes, so that it is read in place.
  const bool in_place = !in_->wants_gradient() && !out_->normalised();
  for (std::size_t at = first; at < last; at += backend.block()) {
    const std::size_t count = std::min(backend.block(), last - at);
    for (std::size_t k = 0; k < count; ++k) {
      const image_view<T> slope = in_place ? out_->view(out_->gradient(at + k)) : backend.slope(k);
      if (!in_place) out_->read_gradient(at + k, slope);
      if (gradients.weights) in_->read(at + k, backend.input(k));
      if (gradients.weights && bias_ != nullptr) out_->add_pixels(slope, bias_sums);
    }
    if (gradients.weights) backend.backward_weights(count, in_place ? out_->gradient(at) : nullptr, sums);
    if (!gradients.data) continue;
    backend.backward_data(count, in_->gradient(at), in_.adds());
    for (std::size_t k = 0; k < count; ++k) in_.written(at + k, lane);
  }
}

template <class T>
void convolution_layer<T>::backward(const pass& now) {
  // Separate sums for many weights are worth their memory only for many pixels.
  const std::size_t least = weights_->values.size() < (std::size_t{1} << 16) ? 512 : 1024;
  const std::size_t count = lanes::count(now.images, this->pixels(), least);
  const std::span<T> weights = weights_->gradient, bias = bias_ != nullptr ? bias_->gradient : std::span<T>();
  const bool both = in_->wants_gradient();
  std::vector<char> begun(convolutions_.size());
  // The memory that a lane writes for its input must not be read by that lane.
  if (count == 1 && both && this->team().threads() > 1 && in_->gradient(0) != out_->gradient(0)) {
    const auto part = [&](wanted gradients) {
      backward_lane(mine(begun), 0, 0, now.images, gradients, weights.data(), bias.data());
    };
    this->team().run_both([&] { part({.weights = true, .data = false}); },
                          [&] { part({.weights = false, .data = true}); });
  } else {
    this->team().run(count, now.images, [&](std::size_t lane, std::size_t first, std::size_t last) {
      backward_lane(mine(begun), lane, first, last, {.weights = true, .data = both}, sums_->begin(lane, weights),
                    bias_sums_.begin(lane, bias));
    });
    sums_->finish(count, weights);
    bias_sums_.finish(count, bias);
  }
  if (now.ready) {
    if (bias_ != nullptr) now.ready(bias_->index);
    now.ready(weights_->index);
  }
  in_.all_written(now);
}

template <class T>
void dense_layer<T>::gather(const pass& now) {
  const std::size_t size = in_->shape().size();
  rows_.resize(now.images * size);
  for (std::size_t i = 0; i < now.images; ++i) in_->read(i, in_->view(rows_.data() + i * size));
}

template <class T>
void dense_layer<T>::forward(const pass& now) {
  const std::size_t from = in_->shape().size(), to = out_->shape().size();
  if (now.images > 0) {
    gather(now);
    multiply(rows_.data(), weights_->values.data(), out_->values(0), now.images, from, to);
    add_to_rows(bias_->values.data(), out_->values(0), now.images, to);
    for (std::size_t i = 0; i < now.images; ++i) out_->written(i, 0);
  }
  out_->all_written(now);
}

template <class T>
void dense_layer<T>::backward(const pass& now) {
  const std::size_t from = in_->shape().size(), to = out_->shape().size();
  if (now.images > 0) {
    gather(now);
    slopes_.resize(now.images * to);
    for (std::size_t i = 0; i < now.images; ++i) out_->read_gradient(i, out_->view(slopes_.data() + i * to));
    add_transposed_multiply(rows_.data(), slopes_.data(), weights_->gradient.data(), from, now.images, to);
    add_rows(slopes_.data(), bias_->gradient.data(), now.images, to);
    if (in_->wants_gradient()) {
      multiply_transposed(slopes_.data(), weights_->values.data(), rows_.data(), now.images, to, from);
      for (std::size_t i = 0; i < now.images; ++i) give(in_, i, 0, rows_.data() + i * from);
    }
  }
  if (now.ready) {
    now.ready(bias_->index);
    now.ready(weights_->index);
  }
  in_.all_written(now);
}

template <class T>
void sum_layer<T>::connect() {
  if (out_->normalised()) return;  // The gradient of the sum differs from the gradient of the values that are read.
  for (const auto* const part : {&a_, &b_}) {
    if (part->adds() || !(*part)->wants_gradient()) continue;
    if (!part->completes()) {
      out_->share_gradient(**part, false);
    } else if (!(*part)->rectified()) {
      out_->share_gradient(**part, true);
    }
  }
}

template <class T>
void sum_layer<T>::forward(const pass& now) {
  this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>&) {
    const auto to = out_->view(out_->values(i));
    a_->read(i, to);
    b_->read(i, to, true);
    out_->written(i, lane);
  });
  out_->all_written(now);
}

template <class T>
void sum_layer<T>::backward(const pass& now) {
  for (const auto* const part : {&a_, &b_}) {
    if ((*part)->shares() || !(*part)->wants_gradient()) continue;
    this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>& scratch) {
      give(*part, i, lane, slope_of(*out_, i, scratch));
    });
    part->all_written(now);
  }
}

template <class T>
void padded_shortcut<T>::forward(const pass& now) {
  const extent& from = in_->shape();
  const extent& to = out_->shape();
  const std::size_t before = (to.channels - from.channels) / 2;
  this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>& image) {
    image.resize(from.size());
    in_->read(i, in_->view(image.data()));
    T* const out = out_->values(i);
    std::fill_n(out, to.size(), T{0});
    for (std::size_t y = 0; y < to.height; ++y) {
      for (std::size_t x = 0; x < to.width; ++x) {
        std::copy_n(image.data() + (y * from.width + x) * stride_ * from.channels, from.channels,
                    out + (y * to.width + x) * to.channels + before);
      }
    }
    out_->written(i, lane);
  });
  out_->all_written(now);
}

template <class T>
void padded_shortcut<T>::backward(const pass& now) {
  if (!in_->wants_gradient()) return;
  const extent& from = in_->shape();
  const extent& to = out_->shape();
  const std::size_t before = (to.channels - from.channels) / 2;
  this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>& scratch) {
    const T* const slope = slope_of(*out_, i, scratch);
    std::vector<T> image(from.size());
    for (std::size_t y = 0; y < to.height; ++y) {
      for (std::size_t x = 0; x < to.width; ++x) {
        std::copy_n(slope + (y * to.width + x) * to.channels + before, from.channels,
                    image.data() + (y * from.width + x) * stride_ * from.channels);
      }
    }
    give(in_, i, lane, image.data());
  });
  in_.all_written(now);
}

template <class T>
void view_layer<T>::backward(const pass& now) {
  if (!in_->wants_gradient()) return;
  this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>&) {
    out_->read_gradient(i, in_->view(in_->gradient(i)), in_.adds());
    in_.written(i, lane);
  });
  in_.all_written(now);
}

template <class T>
void max_pool<T>::forward(const pass& now) {
  const std::size_t size = out_->shape().size();
  this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>&) {
    in_->pool(i, window_, out_->view(out_->values(i)), taps_.data() + i * size);
    out_->written(i, lane);
  });
  out_->all_written(now);
}

template <class T>
void max_pool<T>::backward(const pass& now) {
  if (!in_->wants_gradient()) return;
  const std::size_t size = out_->shape().size();
  this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>& scratch) {
    in_->unpool(i, slope_of(*out_, i, scratch), out_->shape(), window_, taps_.data() + i * size, in_.adds());
    in_.written(i, lane, true);  // A number that was rectified to zero is no tap.
  });
  in_.all_written(now);
}

template <class T>
void average_pool<T>::forward(const pass& now) {
  const extent& from = in_->shape();
  const T share = T{1} / static_cast<T>(from.height * from.width);
  this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>& image) {
    image.resize(from.size());
    in_->read(i, in_->view(image.data()));
    T* const out = out_->values(i);
    std::fill_n(out, from.channels, T{0});
    for (std::size_t at = 0; at < from.size(); at += from.channels) {
      for (std::size_t c = 0; c < from.channels; ++c) out[c] += image[at + c];
    }
    for (std::size_t c = 0; c < from.channels; ++c) out[c] *= share;
    out_->written(i, lane);
  });
  out_->all_written(now);
}

template <class T>
void average_pool<T>::backward(const pass& now) {
  if (!in_->wants_gradient()) return;
  const extent& from = in_->shape();
  const T share = T{1} / static_cast<T>(from.height * from.width);
  this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>& scratch) {
    const T* const slope = slope_of(*out_, i, scratch);
    std::vector<T> image(from.size());
    for (std::size_t at = 0; at < from.size(); at += from.channels) {
      for (std::size_t c = 0; c < from.channels; ++c) image[at + c] = share * slope[c];
    }
    give(in_, i, lane, image.data());
  });
  in_.all_written(now);
}

template <class T>
void pointwise_layer<T>::forward(const pass& now) {
  this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>&) {
    T* const out = out_->values(i);
    in_->read(i, in_->view(out));
    apply(now, i, {out, out_->shape().size()});
    out_->written(i, lane);
  });
  out_->all_written(now);
}

template <class T>
void pointwise_layer<T>::backward(const pass& now) {
  if (!in_->wants_gradient()) return;
  this->over_images(now, [&](std::size_t i, std::size_t lane, std::vector<T>& scratch) {
    const T* const given = slope_of(*out_, i, scratch);
    std::vector<T> slopes(given, given + out_->shape().size());
    multiply(now, i, out_->values(i), slopes);
    give(in_, i, lane, slopes.data());
  });
  in_.all_written(now);
}

template <class T>
void sigmoid_layer<T>::apply(const pass&, std::size_t, std::span<T> values) const {
  for (auto& x : values) x = T{1} / (T{1} + std::exp(-x));
}

template <class T>
void sigmoid_layer<T>::multiply(const pass&, std::size_t, const T* results, std::span<T> slopes) const {
  for (std::size_t k = 0; k < slopes.size(); ++k) slopes[k] *= results[k] * (T{1} - results[k]);
}

template <class T>
void drop_out(const pass& now, double probability, std::uint64_t layer, std::size_t image, std::span<T> values) {
  if (!now.training || probability == 0) return;
  if (now.samples.size() < now.images) {
    throw muster::configuration_error(
        "dropout needs the samples of the batch (they seed its choice); set pass::samples");
  }
  muster::random_stream random(muster::mix(now.key) + layer, now.samples[image]);
  const T factor = static_cast<T>(1 / (1 - probability));
  for (auto& x : values) x *= random.uniform() < probability ? T{0} : factor;
}

template <class T>
void dropout<T>::apply(const pass& now, std::size_t image, std::span<T> values) const {
  drop_out(now, probability_, number_, image, values);
}

template <class T>
void dropout<T>::multiply(const pass& now, std::size_t image, const T* /*results*/, std::span<T> slopes) const {
  apply(now, image, slopes);
}

template class convolution_layer<float>;
template class convolution_layer<double>;
template class dense_layer<float>;
template class dense_layer<double>;
template class sum_layer<float>;
template class sum_layer<double>;
template class padded_shortcut<float>;
template class padded_shortcut<double>;
template class view_layer<float>;
template class view_layer<double>;
template class max_pool<float>;
template class max_pool<double>;
template class average_pool<float>;
template class average_pool<double>;
template class sigmoid_layer<float>;
template class sigmoid_layer<double>;
template void drop_out<float>(const pass&, double, std::uint64_t, std::size_t, std::span<float>);
template void drop_out<double>(const pass&, double, std::uint64_t, std::size_t, std::span<double>);
template class dropout<float>;
template class dropout<double>;

}  // namespace nn
