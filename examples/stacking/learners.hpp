// The models of the ensemble: how each is fitted, and what it predicts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <muster/comm/context.hpp>

#include "matrix.hpp"
#include "stacking.pb.h"

namespace stacked {

using rows = std::vector<Eigen::Index>;

/// Fits a model to these rows of the dataset that it was made for.
using learner = std::function<stacking::Model(const rows&)>;

/// Of a configuration in JSON, {"model": NAME, "params": {...}}, with the names and defaults of scikit-learn:
/// LinearSVR, Lasso, RandomForestRegressor, KNeighborsRegressor and LogisticRegression; and
/// DistributedLogisticRegression, which all ranks of the context fit together. Both `data` and `ranks` outlive it.
/// Throws muster::configuration_error.
[[nodiscard]] learner make_learner(const std::string& config, const dataset& data, muster::context& ranks);

/// The mean of the label; of a logistic model the probability of 1.
[[nodiscard]] column predict(const stacking::Model& model, const matrix& features);

/// The rows that each of five parts leaves out: one after the other, or with as many of each label.
[[nodiscard]] std::vector<rows> parts_in_order(Eigen::Index count);
[[nodiscard]] std::vector<rows> parts_by_label(const column& labels);

/// What a model predicts for each part that is fitted to the others.
[[nodiscard]] column cross_predict(const learner& fit, const matrix& features, const std::vector<rows>& parts);

/// The probability that a row of label 1 scores above one of label 0, ties counted half (area under the ROC curve).
/// Not a number where there is but one label.
[[nodiscard]] double roc_auc(const column& labels, const column& scores);

namespace detail {

/// A forest of regression trees over bootstrap samples, as scikit-learn's.
struct forest_options {
  int trees = 100, depth = 1000, least_to_split = 2, least_in_leaf = 1;
  std::uint64_t seed = 0;
};
[[nodiscard]] learner make_forest(const forest_options& how, const dataset& data);

/// L2-regularised logistic regression with an intercept that is not, by Newton's method: weights, then the intercept.
[[nodiscard]] column fit_logistic(const matrix& features, const column& labels, double c);

}  // namespace detail
}  // namespace stacked
