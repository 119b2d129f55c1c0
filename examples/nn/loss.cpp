#include "loss.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <muster/data/classes.hpp>

namespace nn {

template <class T>
totals softmax_cross_entropy(std::span<const T> logits, std::span<const float> labels, std::size_t classes,
                             double scale, std::span<T> gradient) {
  totals sums;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto row = logits.subspan(i * classes, classes);
    const std::size_t label = muster::class_of(labels[i], classes);
    const double largest = static_cast<double>(*std::max_element(row.begin(), row.end()));
    double sum = 0;
    for (const T value : row) sum += std::exp(static_cast<double>(value) - largest);
    sums.loss += std::log(sum) + largest - static_cast<double>(row[label]);
    std::size_t before = 0;
    for (std::size_t c = 0; c < classes; ++c) before += row[c] > row[label] || (row[c] == row[label] && c < label);
    sums.top1 += before < 1;
    sums.top5 += before < 5;
    ++sums.images;
    for (std::size_t c = 0; !gradient.empty() && c < classes; ++c) {
      const double share = std::exp(static_cast<double>(row[c]) - largest) / sum;
      gradient[i * classes + c] = static_cast<T>(scale * (share - (c == label ? 1.0 : 0.0)));
    }
  }
  return sums;
}

void softmax(std::span<const float> logits, std::size_t classes, std::span<float> probabilities) {
  for (std::size_t first = 0; first < logits.size(); first += classes) {
    const auto row = logits.subspan(first, classes);
    const double largest = static_cast<double>(*std::max_element(row.begin(), row.end()));
    double sum = 0;
    for (const float value : row) sum += std::exp(static_cast<double>(value) - largest);
    for (std::size_t c = 0; c < classes; ++c)
      probabilities[first + c] = static_cast<float>(std::exp(static_cast<double>(row[c]) - largest) / sum);
  }
}

template totals softmax_cross_entropy<float>(std::span<const float>, std::span<const float>, std::size_t, double,
                                             std::span<float>);
template totals softmax_cross_entropy<double>(std::span<const double>, std::span<const float>, std::size_t, double,
                                              std::span<double>);

}  // namespace nn
