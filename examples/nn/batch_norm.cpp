#include "batch_norm.hpp"

#include <algorithm>
#include <cmath>

#include <muster/comm/collectives/allreduce.hpp>

namespace nn {

template <class T>
batch_norm<T>::batch_norm(std::size_t channels, parameter<T>& scale, parameter<T>& shift, const kernel_set<T>& kernels)
    : channels_(channels), gamma_(&scale), beta_(&shift), kernels_(&kernels) {
  for (auto* const each : {&scale_, &shift_, &mean_, &inverse_, &slope_factor_, &value_factor_, &offset_}) {
    each->resize(channels);
  }
  for (auto& lane : lanes_) {
    for (auto* const each : {&lane.pivot, &lane.sum, &lane.products}) each->resize(channels);
    lane.totals.resize(2 * channels);
  }
}

template <class T>
void batch_norm<T>::begin(const pass& now) {
  for (auto& lane : lanes_) {
    std::fill(lane.totals.begin(), lane.totals.end(), 0.0);
    lane.pixels = 0;
  }
  training_ = now.training;
  if (training_) return;
  std::vector<double> running(2 * channels_);
  std::copy(running_.begin(), running_.end(), running.begin());
  set_function(std::span(running).first(channels_), std::span(running).last(channels_));
}

template <class T>
void batch_norm<T>::add_image(const image_view<const T>& image, std::size_t lane) {
  if (!training_) return;
  auto& [pivot, sum, products, totals, pixels] = lanes_[lane];
  // The mean of the first rows serves as pivot for all images: it is close enough to their means that the squares do
  // not cancel.
  if (pixels == 0) {
    auto some = image;
    some.height = (image.height + lanes::most - 1) / lanes::most;
    std::fill(pivot.begin(), pivot.end(), T{0});
    kernels_->moments(some, pivot.data(), sum.data(), products.data());
    for (std::size_t c = 0; c < channels_; ++c) {
      pivot[c] = sum[c] / static_cast<T>(some.height * some.width);
      sum[c] = products[c] = T{0};
    }
  }
  kernels_->moments(image, pivot.data(), sum.data(), products.data());
  end_slopes(lane);
  pixels += static_cast<double>(image.height * image.width);
}

template <class T>
void batch_norm<T>::end_slopes(std::size_t lane) noexcept {
  auto& [pivot, sum, products, totals, pixels] = lanes_[lane];
  for (std::size_t c = 0; c < channels_; ++c) {
    totals[c] += static_cast<double>(sum[c]);
    totals[channels_ + c] += static_cast<double>(products[c]);
    sum[c] = products[c] = T{0};
  }
}

template <class T>
void batch_norm<T>::finish(const pass& now) {
  if (!now.training) return;
  // Combines sums relative to each lane's pivot into the mean over all lanes, in double. Chan, Golub and LeVeque 1983:
  // the variance of the whole follows from the variances and the means of the parts.
  double count = 0;
  std::vector<double> mean(channels_), spread(channels_);
  for (const auto& lane : lanes_) {
    if (lane.pixels == 0) continue;
    const double whole = count + lane.pixels;
    for (std::size_t c = 0; c < channels_; ++c) {
      const double sum = lane.totals[c], offset = sum / lane.pixels;
      const double away = static_cast<double>(lane.pivot[c]) + offset - mean[c];
      spread[c] += std::max(0.0, lane.totals[channels_ + c] - sum * offset) + away * away * count * lane.pixels / whole;
      mean[c] += away * lane.pixels / whole;
    }
    count = whole;
  }
  if (now.statistics != nullptr && now.statistics->size() > 1) {
    std::vector<double> first(mean);
    for (double& each : first) each *= count;
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
  // Clears the totals for the backward pass.
  for (auto& lane : lanes_) std::fill(lane.totals.begin(), lane.totals.end(), 0.0);
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
  std::vector<double> totals(2 * channels_);
  for (const auto& lane : lanes_) {
    for (std::size_t k = 0; k < totals.size(); ++k) totals[k] += lane.totals[k];
  }
  // With x^ = (x - mean) * inverse: dx = gamma * inverse * (g - mean of g - x^ * mean of g x^).
  for (std::size_t c = 0; c < channels_; ++c) {
    beta_->gradient[c] += static_cast<T>(totals[c]);
    totals[channels_ + c] *= static_cast<double>(inverse_[c]);
    gamma_->gradient[c] += static_cast<T>(totals[channels_ + c]);
  }
  if (now.statistics != nullptr && now.statistics->size() > 1) {
    muster::allreduce(*now.statistics, std::span(totals), muster::sum);
  }
  for (std::size_t c = 0; c < channels_ && pixels_ > 0; ++c) {
    const double scale = static_cast<double>(scale_[c]), inverse = static_cast<double>(inverse_[c]);
    const double of_slopes = totals[c] / pixels_, of_products = totals[channels_ + c] / pixels_;
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
