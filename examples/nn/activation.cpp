#include "activation.hpp"

#include "batch_norm.hpp"

namespace nn {

template <class T>
void activation<T>::see(activation& other) {
  source_ = &other;
  other.viewers_.push_back(this);
}

template <class T>
void activation<T>::share_gradient(activation& part, bool complete) {
  part.sum_ = this;
  sharers_.push_back(&part);
  if (complete) terms_.push_back(&part);
}

template <class T>
void activation<T>::reserve(std::size_t images) {
  const std::size_t size = images * shape_.size();
  if (source_ != nullptr) {
    values_ = source_->values_;
  } else if (!outside_ && values_->size() < size) {
    *values_ = muster::buffer<T>(size);
  }
  if (sum_ != nullptr || outside_) return;  // The sum's reserve() provides the memory.
  if (gradients_->size() < size) *gradients_ = muster::buffer<T>(size);
  const auto hand_out = [](const auto& self, activation& owner) -> void {
    for (activation* const part : owner.sharers_) {
      part->gradients_ = owner.gradients_;
      self(self, *part);
    }
  };
  hand_out(hand_out, *this);
}

template <class T>
image_view<const T> activation<T>::stored(std::size_t image) const noexcept {
  const T* const all = outside_ ? given_ : values_->data();
  return {all + image * shape_.size(), shape_.height, shape_.width, shape_.channels, shape_.width * shape_.channels};
}

template <class T>
pointwise<T> activation<T>::function() const noexcept {
  if (norm_ == nullptr) return {nullptr, nullptr, relu_};
  return {norm_->scale(), norm_->shift(), relu_};
}

template <class T>
void activation<T>::written(std::size_t image, std::size_t lane) {
  if (norm_ != nullptr) norm_->add_image(stored(image), lane);
  for (activation* const viewer : viewers_) viewer->written(image, lane);
}

template <class T>
void activation<T>::all_written(const pass& now) {
  if (norm_ != nullptr) norm_->finish(now);
  for (activation* const viewer : viewers_) viewer->all_written(now);
}

template <class T>
void activation<T>::all_gradients_written(const pass& now) {
  if (norm_ != nullptr) norm_->finish_backward(now);
  for (activation* const part : terms_) part->all_gradients_written(now);
}

template <class T>
void activation<T>::read(std::size_t image, const image_view<T>& to, bool add) {
  kernels_->apply(stored(image), function(), to, add);
}

template <class T>
void activation<T>::pool(std::size_t image, const pool_window& window, const image_view<T>& to, T* taps) {
  kernels_->pool(stored(image), function(), window, to, taps);
}

template <class T>
void activation<T>::unpool(std::size_t image, const T* slope, const extent& pooled, const pool_window& window,
                           const T* taps, bool add) {
  const image_view<const T> from{slope, pooled.height, pooled.width, pooled.channels, pooled.width * pooled.channels};
  kernels_->unpool(from, taps, window, view(gradient(image)), add);
}

template <class T>
void activation<T>::add_pixels(const image_view<T>& image, T* sum) const {
  kernels_->add_pixels({image.data, image.height, image.width, image.channels, image.row_step}, sum);
}

template <class T>
void activation<T>::gradient_written(std::size_t image, std::size_t lane, bool masked) {
  auto mask_function = function();
  if (masked) mask_function.relu = false;
  const auto values = stored(image);
  const auto slope = view(gradient(image));
  // Takes the sums for the normalisation of a term while the gradient is in the cache.
  activation* of = norm_ != nullptr ? this : nullptr;
  std::size_t taken = 0;
  if (of == nullptr && !terms_.empty() && terms_.front()->norm_ != nullptr) {
    of = terms_.front();
    taken = 1;
  }
  if (of != nullptr) {
    auto& norm = *of->norm_;
    kernels_->mask(values, mask_function, slope, of->stored(image).data, norm.mean(), norm.begin_slopes(lane),
                   norm.products(lane));
    norm.end_slopes(lane);
  } else {
    kernels_->mask(values, mask_function, slope, nullptr, nullptr, nullptr, nullptr);
  }
  for (; taken < terms_.size(); ++taken) {
    activation& part = *terms_[taken];
    if (part.norm_ == nullptr) continue;
    auto& norm = *part.norm_;
    kernels_->mask(part.stored(image), {}, slope, part.stored(image).data, norm.mean(), norm.begin_slopes(lane),
                   norm.products(lane));
    norm.end_slopes(lane);
  }
}

template <class T>
void activation<T>::read_gradient(std::size_t image, const image_view<T>& to, bool add) {
  const auto slope = view(gradient(image));
  const image_view<const T> given{slope.data, slope.height, slope.width, slope.channels, slope.row_step};
  if (norm_ == nullptr) {
    kernels_->apply(given, {}, to, add);
  } else {
    kernels_->combine(given, stored(image), norm_->slope_factor(), norm_->value_factor(), norm_->offset(), to, add);
  }
}

template class activation<float>;
template class activation<double>;

}  // namespace nn
