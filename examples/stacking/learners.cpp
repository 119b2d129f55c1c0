#include "learners.hpp"

#include <linear.h>
#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/error.hpp>

namespace stacked {
namespace {

using nlohmann::json;

stacking::Model linear_model(const char* kind, const Eigen::Ref<const column>& weights, double intercept) {
  stacking::Model model;
  model.set_kind(kind);
  model.mutable_weights()->Add(weights.data(), weights.data() + weights.size());
  model.set_intercept(intercept);
  return model;
}

/// Returns liblinear's regression, as in scikit-learn: the intercept is the weight of a feature that is always 1.
learner linear_svr(double c, double tolerance, unsigned seed, const dataset& data) {
  const auto columns = data.features.cols();
  const auto width = static_cast<std::size_t>(columns) + 2;
  auto nodes = std::make_shared<std::vector<feature_node>>(static_cast<std::size_t>(data.features.rows()) * width);
  for (Eigen::Index row = 0; row < data.features.rows(); ++row) {
    feature_node* const at = nodes->data() + static_cast<std::size_t>(row) * width;
    for (Eigen::Index k = 0; k < columns; ++k) at[k] = {static_cast<int>(k + 1), data.features(row, k)};
    at[columns] = {static_cast<int>(columns + 1), 1};
    at[columns + 1] = {-1, 0};
  }
  return [=, &data](const rows& of) {
    std::vector<feature_node*> x;
    std::vector<double> y;
    for (const auto row : of) {
      x.push_back(nodes->data() + static_cast<std::size_t>(row) * width);
      y.push_back(data.labels[row]);
    }
    const problem task{static_cast<int>(of.size()), static_cast<int>(columns + 1), y.data(), x.data(), 1};
    parameter settings{};
    settings.solver_type = L2R_L1LOSS_SVR_DUAL;
    settings.eps = tolerance;
    settings.C = c;
    static std::mutex one_at_a_time;  // liblinear uses the random generator of the C library.
    const std::lock_guard lock(one_at_a_time);
    ::set_print_string_function([](const char*) {});
    std::srand(seed);
    ::model* trained = ::train(&task, &settings);
    auto model = linear_model("LinearSVR", Eigen::Map<const column>(trained->w, columns), trained->w[columns]);
    ::free_and_destroy_model(&trained);
    return model;
  };
}

/// Returns true if the duality gap (Kim et al. 2007) is below the tolerance.
bool is_optimal(const matrix& x, const column& y, const column& w, const column& residual, double penalty,
                double tolerance) {
  const double steepest = (x.transpose() * residual).cwiseAbs().maxCoeff(), square = residual.squaredNorm();
  const double scale = steepest > penalty ? penalty / steepest : 1;
  const double gap = 0.5 * square * (1 + scale * scale) + penalty * w.lpNorm<1>() - scale * residual.dot(y);
  return gap < tolerance * y.squaredNorm();
}

/// Returns a Lasso by cyclic coordinate descent (Friedman et al. 2010). No library of Debian 12 has it.
learner lasso(double alpha, double tolerance, int most_rounds, const dataset& data) {
  return [=, &data](const rows& of) {
    matrix x = data.features(of, Eigen::all);
    column y = data.labels(of);
    const Eigen::RowVectorXd middle = x.colwise().mean();
    const double mean = y.mean(), penalty = alpha * static_cast<double>(of.size());
    x.rowwise() -= middle;
    y.array() -= mean;
    const Eigen::RowVectorXd squares = x.colwise().squaredNorm();
    column w = column::Zero(x.cols()), residual = y;
    for (int round = 0; round < most_rounds; ++round) {
      double largest = 0, largest_change = 0;
      for (Eigen::Index k = 0; k < x.cols(); ++k) {
        if (squares[k] == 0) continue;
        const double before = w[k], slope = x.col(k).dot(residual) + before * squares[k];
        w[k] = std::copysign(std::max(std::abs(slope) - penalty, 0.0), slope) / squares[k];
        if (w[k] != before) residual += (before - w[k]) * x.col(k);
        largest = std::max(largest, std::abs(w[k]));
        largest_change = std::max(largest_change, std::abs(w[k] - before));
      }
      if ((largest == 0 || largest_change / largest < tolerance) && is_optimal(x, y, w, residual, penalty, tolerance))
        break;
    }
    return linear_model("Lasso", w, mean - middle * w);
  };
}

learner nearest_neighbours(unsigned count, const dataset& data) {
  return [=, &data](const rows& of) {
    if (count > of.size()) {
      throw muster::configuration_error("n_neighbors " + std::to_string(count) + " is more than there are rows (" +
                                        std::to_string(of.size()) + "); give less");
    }
    matrix kept(static_cast<Eigen::Index>(of.size()), data.features.cols() + 1);
    kept << data.features(of, Eigen::all), data.labels(of);
    stacking::Model model;
    model.set_kind("KNeighborsRegressor");
    model.set_neighbours(count);
    model.set_rows(to_npy(kept));
    return model;
  };
}

column predict_neighbours(const stacking::Model& model, const matrix& features) {
  const dataset known = to_dataset(model.rows(), "the rows of a model of nearest neighbours");
  const column squares = known.features.rowwise().squaredNorm();
  matrix distances = (known.features * features.transpose()) * -2;  // Squared distances, without the square of the row.
  distances.colwise() += squares;
  column predicted(features.rows());
  rows order(static_cast<std::size_t>(known.labels.size()));
  const auto nearest = static_cast<std::ptrdiff_t>(model.neighbours());
  for (Eigen::Index row = 0; row < features.rows(); ++row) {
    std::iota(order.begin(), order.end(), 0);
    std::ranges::nth_element(order, order.begin() + nearest - 1, {}, [&](auto k) { return distances(k, row); });
    predicted[row] = known.labels(rows(order.begin(), order.begin() + nearest)).mean();
  }
  return predicted;
}

/// Returns a logistic regression over features that are divided among the ranks. The sum of the ranks' kernels is the
/// kernel for all features. A square root of this kernel replaces the features, because the weights are a sum of rows
/// (the representer theorem).
learner distributed_logistic(double c, const dataset& data, muster::context& ranks) {
  return [=, &data, &ranks](const rows& of) {
    column weights = column::Zero(data.features.cols() + 1);
    static std::mutex one_at_a_time;  // The context has one world.
    const std::lock_guard lock(one_at_a_time);
    ranks.run([&](muster::group& world) {
      const auto all = data.features.cols(), from = all * world.rank() / world.size();
      const auto mine = all * (world.rank() + 1) / world.size() - from;
      const matrix x = data.features(of, Eigen::seqN(from, mine));
      matrix kernel = x * x.transpose();
      muster::allreduce(world, std::span(kernel.data(), static_cast<std::size_t>(kernel.size())), muster::sum);
      kernel.diagonal().array() += 1e-9 * kernel.trace() / static_cast<double>(kernel.rows());  // Rows may be equal.
      const Eigen::LLT<matrix> root(kernel);
      const column fitted = detail::fit_logistic(matrix(root.matrixL()), data.labels(of), c);
      const column of_rows = root.matrixU().solve(fitted.head(fitted.size() - 1));
      column found = column::Zero(all + 1);
      found.segment(from, mine) = x.transpose() * of_rows;
      muster::allreduce(world, std::span(found.data(), static_cast<std::size_t>(found.size())), muster::sum);
      found[all] = fitted[fitted.size() - 1];
      if (world.rank() == 0) weights = found;
    });
    return linear_model("DistributedLogisticRegression", weights.head(data.features.cols()),
                        weights[data.features.cols()]);
  };
}

}  // namespace

column detail::fit_logistic(const matrix& features, const column& labels, double c) {
  matrix x(features.rows(), features.cols() + 1);
  x << features, column::Ones(features.rows());
  column penalty = column::Ones(x.cols());
  penalty[x.cols() - 1] = 0;
  const auto loss = [&](const column& w) {  // log(1 + exp(z)) - y z
    const Eigen::ArrayXd z = x * w;
    return c * (z.max(0) + (-z.abs()).exp().log1p() - labels.array() * z).sum() +
           0.5 * (penalty.array() * w.array().square()).sum();
  };
  column w = column::Zero(x.cols());
  double now = loss(w);
  for (int round = 0; round < 100; ++round) {
    const Eigen::ArrayXd p = 1 / (1 + (-(x * w)).array().exp());
    const column slope = c * (x.transpose() * (p - labels.array()).matrix()) + penalty.cwiseProduct(w);
    const Eigen::ArrayXd curvature = c * p * (1 - p);
    matrix hessian = x.transpose() * curvature.matrix().asDiagonal() * x;
    hessian.diagonal() += penalty;
    hessian(x.cols() - 1, x.cols() - 1) += 1e-12;
    const column step = hessian.ldlt().solve(slope);
    if (step.cwiseAbs().maxCoeff() <= 1e-10 * (1 + w.cwiseAbs().maxCoeff())) return w - step;
    double length = 1;
    while (length > 1e-9 && !(loss(w - length * step) <= now)) length /= 2;
    if (length <= 1e-9) break;  // The step no longer changes the last digit.
    w -= length * step;
    now = loss(w);
  }
  return w;
}

learner make_learner(const std::string& config, const dataset& data, muster::context& ranks) {
  std::string name;
  try {
    const json read = json::parse(config);
    name = read.at("model").get<std::string>();
    const json parameters = read.value("params", json::object());
    if (name == "LinearSVR")
      return linear_svr(parameters.value("C", 1.0), parameters.value("tol", 1e-4), parameters.value("random_state", 0U),
                        data);
    if (name == "Lasso")
      return lasso(parameters.value("alpha", 1.0), parameters.value("tol", 1e-4), parameters.value("max_iter", 1000),
                   data);
    if (name == "KNeighborsRegressor") return nearest_neighbours(parameters.value("n_neighbors", 5U), data);
    if (name == "RandomForestRegressor") {
      detail::forest_options options;
      options.trees = parameters.value("n_estimators", options.trees);
      options.depth = parameters.value("max_depth", options.depth);
      options.least_to_split = parameters.value("min_samples_split", options.least_to_split);
      options.least_in_leaf = parameters.value("min_samples_leaf", options.least_in_leaf);
      options.seed = parameters.value("random_state", options.seed);
      return detail::make_forest(options, data);
    }
    const double c = parameters.value("C", 1.0);
    if (name == "DistributedLogisticRegression") return distributed_logistic(c, data, ranks);
    if (name == "LogisticRegression") {
      return [c, &data](const rows& of) {
        const column w = detail::fit_logistic(data.features(of, Eigen::all), data.labels(of), c);
        return linear_model("LogisticRegression", w.head(w.size() - 1), w[w.size() - 1]);
      };
    }
  } catch (const json::exception& wrong) {
    throw muster::configuration_error("model_config cannot be used (" + std::string(wrong.what()) +
                                      "); write {\"model\": NAME, \"params\": {...}}");
  }
  throw muster::configuration_error("there is no model '" + name +
                                    "' (known: LinearSVR, Lasso, RandomForestRegressor, KNeighborsRegressor, "
                                    "LogisticRegression, DistributedLogisticRegression); use a known name");
}

column predict(const stacking::Model& model, const matrix& features) {
  if (model.neighbours() > 0) return predict_neighbours(model, features);
  column predictions = column::Zero(features.rows());
  for (Eigen::Index row = 0; model.trees_size() > 0 && row < features.rows(); ++row) {
    for (const auto& tree : model.trees()) {
      const stacking::Node* at = &tree.nodes(0);
      while (at->feature() >= 0)
        at = &tree.nodes(static_cast<int>(features(row, at->feature()) <= at->threshold() ? at->below() : at->above()));
      predictions[row] += at->value() / model.trees_size();
    }
  }
  if (model.trees_size() > 0) return predictions;
  if (model.weights_size() != features.cols()) {
    throw muster::configuration_error("a model of " + std::to_string(model.weights_size()) + " features is given " +
                                      std::to_string(features.cols()) + "; give it its own dataset");
  }
  predictions = features * Eigen::Map<const column>(model.weights().data(), model.weights_size());
  predictions.array() += model.intercept();
  if (model.kind().ends_with("LogisticRegression")) predictions = (1 / (1 + (-predictions.array()).exp())).matrix();
  return predictions;
}

}  // namespace stacked
