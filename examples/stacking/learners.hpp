// The models of the ensemble: fitting and prediction.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <muster/comm/context.hpp>

#include "matrix.hpp"
#include "stacking.pb.h"

namespace stacked {

using rows = std::vector<Eigen::Index>;

/// A function that fits a model to these rows in its dataset.
using learner = std::function<stacking::Model(const rows&)>;

/// Returns the learner of a JSON configuration, {"model": NAME, "params": {...}}, with the names and defaults of
/// scikit-learn: LinearSVR, Lasso, RandomForestRegressor, KNeighborsRegressor and LogisticRegression; and
/// DistributedLogisticRegression, which all ranks of the context fit together. `data` and `ranks` must outlive the
/// learner. Throws muster::configuration_error.
[[nodiscard]] learner make_learner(const std::string& config, const dataset& data, muster::context& ranks);

/// Returns the predicted mean of the label; for a logistic model the probability of 1.
[[nodiscard]] column predict(const stacking::Model& model, const matrix& features);

/// Returns the rows that each of five folds leaves out: consecutive rows, or stratified by label.
[[nodiscard]] std::vector<rows> parts_in_order(Eigen::Index count);
[[nodiscard]] std::vector<rows> parts_by_label(const column& labels);

/// Returns for each fold the predictions of a model that is fitted to the other folds.
[[nodiscard]] column cross_predict(const learner& fit, const matrix& features, const std::vector<rows>& parts);

/// Returns the probability that a row of label 1 scores above a row of label 0, where ties count half (area under the
/// ROC curve). NaN if there is only one label.
[[nodiscard]] double roc_auc(const column& labels, const column& scores);

namespace detail {

/// The options of a forest of regression trees over bootstrap samples, as in scikit-learn.
struct forest_options {
  int trees = 100, depth = 1000, least_to_split = 2, least_in_leaf = 1;
  std::uint64_t seed = 0;
};
[[nodiscard]] learner make_forest(const forest_options& options, const dataset& data);

/// Fits L2-regularised logistic regression by Newton's method, with an intercept that is not regularised. Returns the
/// weights, then the intercept.
[[nodiscard]] column fit_logistic(const matrix& features, const column& labels, double c);

}  // namespace detail
}  // namespace stacked
