#include "batch_norm.hpp"

#include <algorithm>
#include <cmath>

#include <muster/comm/collectives/allreduce.hpp>

namespace nn {

template <class T>
batch_norm<T>::batch_norm(std::size_t channels, parameter<T>& scale, parameter<T>& shift, const kernel_set<T>& kernels)
    : channels_(channels), gamma_(&scale), beta_(&shift), kernels_(&kernels), totals_(2 * channels + 1) {
  for (auto* const each :
       {&pivot_, &sum_, &products_, &scale_, &shift_, &mean_, &inverse_, &slope_factor_, &value_factor_, &offset_}) {
    each->resize(channels);
  }
}

template <class T>
void batch_norm<T>::begin(const pass& now) {
  std::fill(totals_.begin(), totals_.end(), 0.0);
  std::fill(sum_.begin(), sum_.end(), T{0});
  std::fill(products_.begin(), products_.end(), T{0});
  training_ = now.training;
  if (training_) return;
  std::vector<double> running(2 * channels_);
  std::copy(running_.begin(), running_.end(), running.begin());
  set_function(std::span(running).first(channels_), std::span(running).last(channels_));
}

template <class T>
void batch_norm<T>::see(const image_view<const T>& image) {
  if (!training_) return;
  // The first image's own mean serves all: close enough to theirs that the squares do not cancel.
  const double pixels = static_cast<double>(image.height * image.width);
  if (totals_[2 * channels_] == 0) {
    std::fill(pivot_.begin(), pivot_.end(), T{0});
    kernels_->moments(image, pivot_.data(), sum_.data(), products_.data());
    for (std::size_t c = 0; c < channels_; ++c) pivot_[c] = sum_[c] / static_cast<T>(pixels);
    std::fill(sum_.begin(), sum_.end(), T{0});
    std::fill(products_.begin(), products_.end(), T{0});
  }
  kernels_->moments(image, pivot_.data(), sum_.data(), products_.data());
  end_slopes();
  totals_[2 * channels_] += pixels;
}

template <class T>
void batch_norm<T>::end_slopes() noexcept {
  for (std::size_t c = 0; c < channels_; ++c) {
    totals_[c] += static_cast<double>(sum_[c]);
    totals_[channels_ + c] += static_cast<double>(products_[c]);
    sum_[c] = products_[c] = T{0};
  }
}

template <class T>
void batch_norm<T>::finish(const pass& now) {
  if (!now.training) return;
  // From sums relative to this rank's pivot to sums relative to zero of all ranks, by way of the mean: in double.
  const std::span<double> sums(totals_.data(), channels_), squares(totals_.data() + channels_, channels_);
  double& count = totals_[2 * channels_];
  std::vector<double> mean(channels_), spread(channels_);
  for (std::size_t c = 0; c < channels_ && count > 0; ++c) {
    mean[c] = static_cast<double>(pivot_[c]) + sums[c] / count;
    spread[c] = std::max(0.0, squares[c] - sums[c] * sums[c] / count);
  }
  if (now.statistics != nullptr && now.statistics->size() > 1) {
    // Chan, Golub and LeVeque 1983: the spread of the whole is that of the parts and of their means.
    for (std::size_t c = 0; c < channels_; ++c) sums[c] = count * mean[c];
    std::vector<double> first(sums.begin(), sums.end());
    first.push_back(count);
    muster::allreduce(*now.statistics, std::span(first), muster::sum);
    const double all = first.back();
    for (std::size_t c = 0; c < channels_ && all > 0; ++c) {
      const double whole = first[c] / all;
      spread[c] += count * (mean[c] - whole) * (mean[c] - whole);
      mean[c] = whole;
    }
    muster::allreduce(*now.statistics, std::span(spread), muster::sum);
    count = all;
  }
  pixels_ = count;
  if (count > 0) {
    for (std::size_t c = 0; c < channels_; ++c) {
      const auto blend = [](T& old, double fresh) {
        old = static_cast<T>((1 - static_cast<double>(momentum)) * static_cast<double>(old) +
                             static_cast<double>(momentum) * fresh);
      };
      blend(running_[c], mean[c]);
      blend(running_[channels_ + c], spread[c] / std::max(1.0, count - 1));
      spread[c] /= count;
    }
  }
  set_function(mean, spread);
  std::fill(totals_.begin(), totals_.end(), 0.0);  // for the backward pass
}

template <class T>
void batch_norm<T>::set_function(std::span<const double> mean, std::span<const double> variance) {
  for (std::size_t c = 0; c < channels_; ++c) {
    const double inverse = 1 / std::sqrt(variance[c] + static_cast<double>(epsilon));
    const double scale = static_cast<double>(gamma_->values[c]) * inverse;
    mean_[c] = static_cast<T>(mean[c]);
    inverse_[c] = static_cast<T>(inverse);
    scale_[c] = static_cast<T>(scale);
    shift_[c] = static_cast<T>(static_cast<double>(beta_->values[c]) - mean[c] * scale);
  }
}

template <class T>
void batch_norm<T>::finish_backward(const pass& now) {
  // With x^ = (x - mean) * inverse: dx = gamma * inverse * (g - mean of g - x^ * mean of g x^).
  for (std::size_t c = 0; c < channels_; ++c) {
    beta_->gradient[c] += static_cast<T>(totals_[c]);
    totals_[channels_ + c] *= static_cast<double>(inverse_[c]);
    gamma_->gradient[c] += static_cast<T>(totals_[channels_ + c]);
  }
  if (now.statistics != nullptr && now.statistics->size() > 1) {
    muster::allreduce(*now.statistics, std::span(totals_).first(2 * channels_), muster::sum);
  }
  for (std::size_t c = 0; c < channels_ && pixels_ > 0; ++c) {
    const double scale = static_cast<double>(scale_[c]), inverse = static_cast<double>(inverse_[c]);
    const double of_slopes = totals_[c] / pixels_, of_products = totals_[channels_ + c] / pixels_;
    slope_factor_[c] = scale_[c];
    value_factor_[c] = static_cast<T>(-scale * of_products * inverse);
    offset_[c] = static_cast<T>(-scale * of_slopes + scale * of_products * inverse * static_cast<double>(mean_[c]));
  }
  if (now.ready) {
    now.ready(gamma_->index);
    now.ready(beta_->index);
  }
}

template class batch_norm<float>;
template class batch_norm<double>;

}  // namespace nn
