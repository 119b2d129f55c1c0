// Cross-validation and the score, as in scikit-learn.
#include <algorithm>
#include <array>
#include <cmath>

#include "learners.hpp"

namespace stacked {
namespace {

constexpr Eigen::Index parts = 5;

}  // namespace

std::vector<rows> parts_in_order(Eigen::Index count) {
  std::vector<rows> folds(parts);
  Eigen::Index next = 0;
  for (Eigen::Index part = 0; part < parts; ++part) {
    const auto size = count / parts + (part < count % parts ? 1 : 0);
    for (Eigen::Index k = 0; k < size; ++k) folds[static_cast<std::size_t>(part)].push_back(next++);
  }
  return folds;
}

std::vector<rows> parts_by_label(const column& labels) {
  // Sorts the labels in the order of their first appearance; each fold receives every fifth row.
  const double first = labels[0];
  const auto firsts = (labels.array() == first).count();
  std::array<std::array<Eigen::Index, parts>, 2> most{};
  for (Eigen::Index k = 0; k < labels.size(); ++k) ++most[k < firsts ? 0 : 1][static_cast<std::size_t>(k % parts)];
  std::vector<rows> folds(parts);
  std::array<std::size_t, 2> part{};
  for (Eigen::Index k = 0; k < labels.size(); ++k) {
    const std::size_t kind = labels[k] == first ? 0 : 1;
    while (most[kind][part[kind]] == 0) ++part[kind];
    --most[kind][part[kind]];
    folds[part[kind]].push_back(k);
  }
  return folds;
}

column cross_predict(const learner& fit, const matrix& features, const std::vector<rows>& left_out) {
  column predictions(features.rows());
  for (const auto& part : left_out) {
    rows others;
    for (const auto& other : left_out)
      if (&other != &part) others.insert(others.end(), other.begin(), other.end());
    std::ranges::sort(others);
    predictions(part) = predict(fit(others), features(part, Eigen::all));
  }
  return predictions;
}

double roc_auc(const column& labels, const column& scores) {
  rows order(static_cast<std::size_t>(scores.size()));
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = static_cast<Eigen::Index>(k);
  std::ranges::sort(order, {}, [&](auto k) { return scores[k]; });
  double below = 0, pairs = 0, ones = 0;
  for (std::size_t k = 0; k < order.size();) {
    double zeros_here = 0, ones_here = 0;
    const double score = scores[order[k]];
    for (; k < order.size() && scores[order[k]] == score; ++k) ++(labels[order[k]] == 1 ? ones_here : zeros_here);
    pairs += ones_here * (below + zeros_here / 2);
    below += zeros_here;
    ones += ones_here;
  }
  return pairs / (ones * below);  // 0 / 0 if there is only one label.
}

}  // namespace stacked
