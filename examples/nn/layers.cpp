#include "layers.hpp"

#include <algorithm>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

#include "products.hpp"

namespace nn {
namespace {

/// The gradient of one image, from `slope`.
template <class T>
void give(const input_of<T>& in, std::size_t image, const T* slope) {
  T* const to = in->gradient(image);
  const std::size_t size = in->shape().size();
  if (in.adds()) {
    for (std::size_t i = 0; i < size; ++i) to[i] += slope[i];
  } else {
    std::copy_n(slope, size, to);
  }
  in.written(image);
}

/// The gradient of what a layer wrote for one image; in `scratch` where it has to be made.
template <class T>
const T* slope_of(activation<T>& out, std::size_t image, std::vector<T>& scratch) {
  if (!out.normalised()) return out.gradient(image);
  scratch.resize(out.shape().size());
  out.read_gradient(image, out.view(scratch.data()));
  return scratch.data();
}

}  // namespace

template <class T>
void convolution_layer<T>::forward(const pass& now) {
  how_->begin(weights_->values);
  for (std::size_t first = 0; first < now.images; first += how_->block()) {
    const std::size_t count = std::min(how_->block(), now.images - first);
    for (std::size_t k = 0; k < count; ++k) in_->read(first + k, how_->input(k));
    how_->forward(count, bias_ != nullptr ? bias_->values.data() : nullptr, out_->values(first));
    for (std::size_t k = 0; k < count; ++k) out_->written(first + k);
  }
  out_->all_written(now);
}

template <class T>
void convolution_layer<T>::backward(const pass& now) {
  how_->begin(weights_->values);
  // Only for the weights, and as it is: read where it lies.
  const bool in_place = !in_->wants_gradient() && !out_->normalised();
  for (std::size_t first = 0; first < now.images; first += how_->block()) {
    const std::size_t count = std::min(how_->block(), now.images - first);
    for (std::size_t k = 0; k < count; ++k) {
      const image_view<T> slope = in_place ? out_->view(out_->gradient(first + k)) : how_->slope(k);
      if (!in_place) out_->read_gradient(first + k, slope);
      in_->read(first + k, how_->input(k));
      if (bias_ != nullptr) out_->add_pixels(slope, bias_->gradient.data());
    }
    how_->backward_weights(count, in_place ? out_->gradient(first) : nullptr, weights_->gradient.data());
    if (!in_->wants_gradient()) continue;
    how_->backward_data(count, in_->gradient(first), in_.adds());
    for (std::size_t k = 0; k < count; ++k) in_.written(first + k);
  }
  how_->finish(weights_->gradient.data());
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
    for (std::size_t i = 0; i < now.images; ++i) out_->written(i);
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
      for (std::size_t i = 0; i < now.images; ++i) give(in_, i, rows_.data() + i * from);
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
  if (out_->normalised()) return;  // the gradient of the sum is another one than that of what is read
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
  for (std::size_t i = 0; i < now.images; ++i) {
    const auto to = out_->view(out_->values(i));
    a_->read(i, to);
    b_->read(i, to, true);
    out_->written(i);
  }
  out_->all_written(now);
}

template <class T>
void sum_layer<T>::backward(const pass& now) {
  std::vector<T> scratch;
  for (const auto* const part : {&a_, &b_}) {
    if ((*part)->shares() || !(*part)->wants_gradient()) continue;
    for (std::size_t i = 0; i < now.images; ++i) give(*part, i, slope_of(*out_, i, scratch));
    part->all_written(now);
  }
}

template <class T>
void padded_shortcut<T>::forward(const pass& now) {
  const extent& from = in_->shape();
  const extent& to = out_->shape();
  const std::size_t before = (to.channels - from.channels) / 2;
  for (std::size_t i = 0; i < now.images; ++i) {
    in_->read(i, in_->view(image_.data()));
    T* const out = out_->values(i);
    std::fill_n(out, to.size(), T{0});
    for (std::size_t y = 0; y < to.height; ++y) {
      for (std::size_t x = 0; x < to.width; ++x) {
        std::copy_n(image_.data() + (y * from.width + x) * stride_ * from.channels, from.channels,
                    out + (y * to.width + x) * to.channels + before);
      }
    }
    out_->written(i);
  }
  out_->all_written(now);
}

template <class T>
void padded_shortcut<T>::backward(const pass& now) {
  if (!in_->wants_gradient()) return;
  std::vector<T> scratch;
  const extent& from = in_->shape();
  const extent& to = out_->shape();
  const std::size_t before = (to.channels - from.channels) / 2;
  for (std::size_t i = 0; i < now.images; ++i) {
    const T* const slope = slope_of(*out_, i, scratch);
    std::fill(image_.begin(), image_.end(), T{0});
    for (std::size_t y = 0; y < to.height; ++y) {
      for (std::size_t x = 0; x < to.width; ++x) {
        std::copy_n(slope + (y * to.width + x) * to.channels + before, from.channels,
                    image_.data() + (y * from.width + x) * stride_ * from.channels);
      }
    }
    give(in_, i, image_.data());
  }
  in_.all_written(now);
}

template <class T>
void view_layer<T>::backward(const pass& now) {
  if (!in_->wants_gradient()) return;
  for (std::size_t i = 0; i < now.images; ++i) {
    out_->read_gradient(i, in_->view(in_->gradient(i)), in_.adds());
    in_.written(i);
  }
  in_.all_written(now);
}

template <class T>
void max_pool<T>::forward(const pass& now) {
  const std::size_t size = out_->shape().size();
  for (std::size_t i = 0; i < now.images; ++i) {
    in_->pool(i, window_, out_->view(out_->values(i)), taps_.data() + i * size);
    out_->written(i);
  }
  out_->all_written(now);
}

template <class T>
void max_pool<T>::backward(const pass& now) {
  if (!in_->wants_gradient()) return;
  std::vector<T> scratch;
  const std::size_t size = out_->shape().size();
  for (std::size_t i = 0; i < now.images; ++i) {
    in_->unpool(i, slope_of(*out_, i, scratch), out_->shape(), window_, taps_.data() + i * size, in_.adds());
    in_.written(i, true);  // what was rectified to zero is no tap
  }
  in_.all_written(now);
}

template <class T>
void average_pool<T>::forward(const pass& now) {
  const extent& from = in_->shape();
  const T share = T{1} / static_cast<T>(from.height * from.width);
  for (std::size_t i = 0; i < now.images; ++i) {
    in_->read(i, in_->view(image_.data()));
    T* const out = out_->values(i);
    std::fill_n(out, from.channels, T{0});
    for (std::size_t at = 0; at < from.size(); at += from.channels) {
      for (std::size_t c = 0; c < from.channels; ++c) out[c] += image_[at + c];
    }
    for (std::size_t c = 0; c < from.channels; ++c) out[c] *= share;
    out_->written(i);
  }
  out_->all_written(now);
}

template <class T>
void average_pool<T>::backward(const pass& now) {
  if (!in_->wants_gradient()) return;
  std::vector<T> scratch;
  const extent& from = in_->shape();
  const T share = T{1} / static_cast<T>(from.height * from.width);
  for (std::size_t i = 0; i < now.images; ++i) {
    const T* const slope = slope_of(*out_, i, scratch);
    for (std::size_t at = 0; at < from.size(); at += from.channels) {
      for (std::size_t c = 0; c < from.channels; ++c) image_[at + c] = share * slope[c];
    }
    give(in_, i, image_.data());
  }
  in_.all_written(now);
}

template <class T>
template <class Keep>
void dropout<T>::over_elements(const pass& now, std::size_t image, const Keep& keep) const {
  if (now.samples.size() < now.images) {
    throw muster::configuration_error(
        "dropout needs the samples of the batch (they seed its choice); set pass::samples");
  }
  muster::random_stream random(muster::mix(now.key) + number_, now.samples[image]);
  const T factor = static_cast<T>(1 / (1 - probability_));
  for (std::size_t k = 0; k < out_->shape().size(); ++k) keep(k, random.uniform() < probability_ ? T{0} : factor);
}

template <class T>
void dropout<T>::forward(const pass& now) {
  for (std::size_t i = 0; i < now.images; ++i) {
    T* const out = out_->values(i);
    in_->read(i, in_->view(out));
    if (now.training) over_elements(now, i, [&](std::size_t k, T factor) { out[k] *= factor; });
    out_->written(i);
  }
  out_->all_written(now);
}

template <class T>
void dropout<T>::backward(const pass& now) {
  if (!in_->wants_gradient()) return;
  std::vector<T> slope(out_->shape().size()), scratch;
  for (std::size_t i = 0; i < now.images; ++i) {
    const T* const given = slope_of(*out_, i, scratch);
    over_elements(now, i, [&](std::size_t k, T factor) { slope[k] = given[k] * factor; });
    give(in_, i, slope.data());
  }
  in_.all_written(now);
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
template class dropout<float>;
template class dropout<double>;

}  // namespace nn
