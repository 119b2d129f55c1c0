// The training loss and the accuracy of a classifier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nn {

/// Sums over images. The sums of several ranks are added.
struct totals {
  double loss = 0;
  std::uint64_t images = 0;
  std::uint64_t top1 = 0;  ///< Number of images whose class has the largest logit.
  std::uint64_t top5 = 0;  ///< Number of images whose class is among the five largest logits.

  totals& operator+=(const totals& other) noexcept {
    loss += other.loss;
    images += other.images;
    top1 += other.top1;
    top5 += other.top5;
    return *this;
  }
};

/// Computes the cross-entropy of softmax(logits), rows of `classes` logits, and the labels, which are class numbers.
/// Writes the gradient of scale * the sum over the images, unless `gradient` is empty. Among equal logits the first
/// counts as the largest. A logit that is NaN makes the loss NaN. Throws muster::data_error for a label outside the
/// classes.
template <class T>
totals softmax_cross_entropy(std::span<const T> logits, std::span<const float> labels, std::size_t classes,
                             double scale, std::span<T> gradient);

/// Computes the probabilities of the classes: softmax of rows of `classes` logits.
void softmax(std::span<const float> logits, std::size_t classes, std::span<float> probabilities);

}  // namespace nn
