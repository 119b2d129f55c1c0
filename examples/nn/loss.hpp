// What a classifier is trained for, and how good it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nn {

/// Sums over images; those of several ranks are added up.
struct totals {
  double loss = 0;
  std::uint64_t images = 0;
  std::uint64_t top1 = 0;  ///< images whose class has the largest logit
  std::uint64_t top5 = 0;  ///< or one of the five largest

  totals& operator+=(const totals& other) noexcept {
    loss += other.loss;
    images += other.images;
    top1 += other.top1;
    top5 += other.top5;
    return *this;
  }
};

/// Cross-entropy of softmax(logits), rows of `classes` of them, and the labels, which are class numbers. Writes the
/// gradient of scale * the sum over the images, unless `gradient` is empty. Of equal logits the first is the larger; a
/// logit that is not a number makes the loss one. Throws muster::data_error for a label that is no class.
template <class T>
totals softmax_cross_entropy(std::span<const T> logits, std::span<const float> labels, std::size_t classes,
                             double scale, std::span<T> gradient);

/// The probabilities of the classes: softmax of rows of `classes` logits.
void softmax(std::span<const float> logits, std::size_t classes, std::span<float> probabilities);

}  // namespace nn
