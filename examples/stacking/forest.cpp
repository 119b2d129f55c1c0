// A random forest of regression trees. dlib's forest has no depth limit, and no other library of Debian 12 has forests.
#include <algorithm>
#include <memory>
#include <numeric>

#include <muster/core/random.hpp>

#include "learners.hpp"

namespace stacked::detail {
namespace {

/// The rows of a dataset, sorted by each feature.
struct sorted_features {
  explicit sorted_features(const matrix& features) : rows(features.rows()) {
    order.resize(static_cast<std::size_t>(features.size()));
    for (Eigen::Index k = 0; k < features.cols(); ++k) {
      const auto begin = order.begin() + k * rows;
      std::iota(begin, begin + rows, 0);
      std::ranges::stable_sort(begin, begin + rows, {}, [&](int row) { return features(row, k); });
    }
  }
  Eigen::Index rows;
  std::vector<int> order{};
};

class tree_grower {
 public:
  tree_grower(const forest_options& options, const dataset& data, const sorted_features& sorted, column counts)
      : options_(options),
        data_(data),
        sorted_(sorted),
        counts_(std::move(counts)),
        node_of_(static_cast<std::size_t>(data.labels.size())) {}

  stacking::Tree grow() {
    grow(0);
    return std::move(tree_);
  }

 private:
  struct split {
    double gain = 0, threshold = 0;
    Eigen::Index feature = -1;
  };

  std::uint32_t grow(int depth) {
    const auto id = static_cast<std::uint32_t>(tree_.nodes_size());
    tree_.add_nodes()->set_feature(-1);
    double count = 0, sum = 0, squares = 0;
    int members = 0;
    for (Eigen::Index row = 0; row < counts_.size(); ++row) {
      if (!is_in(static_cast<int>(row), id)) continue;
      ++members;
      count += counts_[row];
      sum += counts_[row] * data_.labels[row];
      squares += counts_[row] * data_.labels[row] * data_.labels[row];
    }
    tree_.mutable_nodes(static_cast<int>(id))->set_value(sum / count);
    const bool is_pure = squares - sum * sum / count <= 1e-14 * count;
    if (depth == options_.depth || is_pure || members < std::max(options_.least_to_split, 2 * options_.least_in_leaf))
      return id;
    const split best = best_split(id, members, count, sum);
    if (best.feature < 0) return id;
    const auto divide = [&](bool above) {  // Assigns the rows of one side to a new node, and grows it.
      const auto next = static_cast<std::uint32_t>(tree_.nodes_size());
      for (int row = 0; row < counts_.size(); ++row)
        if (is_in(row, id) && (data_.features(row, best.feature) > best.threshold) == above) node_of(row) = next;
      return grow(depth + 1);
    };
    const auto below = divide(false), above = divide(true);
    auto& node = *tree_.mutable_nodes(static_cast<int>(id));
    node.set_feature(static_cast<std::int32_t>(best.feature));
    node.set_threshold(best.threshold);
    node.set_below(below);
    node.set_above(above);
    return id;
  }

  /// Returns the split with the least squared error: it has the largest total of squared sums over counts.
  split best_split(std::uint32_t id, int members, double count, double sum) {
    split best{sum * sum / count, 0, -1};
    for (Eigen::Index k = 0; k < data_.features.cols(); ++k) {
      const int* const order = sorted_.order.data() + k * sorted_.rows;
      const double* const values = &data_.features(0, k);
      double left_count = 0, left_sum = 0;
      int seen = 0, former = -1;
      for (Eigen::Index i = 0; i < sorted_.rows; ++i) {
        const int row = order[i];
        if (!is_in(row, id)) continue;
        if (seen >= options_.least_in_leaf && members - seen >= options_.least_in_leaf &&
            values[row] > values[former] + 1e-7) {  // Distinguishes values by the tolerance of scikit-learn.
          const double right_sum = sum - left_sum;
          const double gain = left_sum * left_sum / left_count + right_sum * right_sum / (count - left_count);
          if (gain > best.gain) best = {gain, values[former] / 2 + values[row] / 2, k};
        }
        ++seen;
        former = row;
        left_count += counts_[row];
        left_sum += counts_[row] * data_.labels[row];
      }
    }
    return best;
  }

  std::uint32_t& node_of(int row) { return node_of_[static_cast<std::size_t>(row)]; }
  bool is_in(int row, std::uint32_t id) { return node_of(row) == id && counts_[row] > 0; }

  const forest_options& options_;
  const dataset& data_;
  const sorted_features& sorted_;
  column counts_;  ///< Number of times that each row was drawn.
  std::vector<std::uint32_t> node_of_;
  stacking::Tree tree_{};
};

}  // namespace

learner make_forest(const forest_options& options, const dataset& data) {
  const auto sorted = std::make_shared<sorted_features>(data.features);
  return [=, &data](const rows& of) {
    stacking::Model model;
    model.set_kind("RandomForestRegressor");
    for (int tree = 0; tree < options.trees; ++tree) {
      muster::random_stream random(options.seed, static_cast<std::uint64_t>(tree));
      column counts = column::Zero(data.labels.size());
      for (std::size_t draw = 0; draw < of.size(); ++draw) ++counts[of[random.below(of.size())]];
      *model.add_trees() = tree_grower(options, data, *sorted, std::move(counts)).grow();
    }
    return model;
  };
}

}  // namespace stacked::detail
