#include "kernels.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

namespace logistic {
namespace {

// Number of floats in a vector register: 4 with SSE, 8 with AVX, 16 with AVX-512.
constexpr int lane_width = std::max<int>(EIGEN_MAX_STATIC_ALIGN_BYTES, 16) / int{sizeof(float)};
using lane = Eigen::Array<float, lane_width, 1>;
using const_lane_map = Eigen::Map<const lane>;

template <int Rows>
using rows_array = Eigen::Array<float, Rows, 1>;
template <int Rows>
using row_pointers = std::array<const float*, static_cast<std::size_t>(Rows)>;

constexpr int rows_at_once = 8;

// Memory loads overlap with the computation: dot() prefetches one half of the next rows into the second-level cache,
// and add_rows() the other half. (GCC drops calls of a function that does nothing but prefetch.)

/// Computes weights . x for `Rows` dense rows of `size` features.
template <int Rows>
rows_array<Rows> dot(const row_pointers<Rows>& rows, const row_pointers<Rows>& next, std::size_t size,
                     const float* weights) {
  std::array<lane, static_cast<std::size_t>(Rows)> sums;
  for (auto& sum : sums) sum.setZero();
  std::size_t i = 0;
  for (; i + lane_width <= size; i += lane_width) {
    for (std::size_t r = 0; r < (Rows + 1) / 2; ++r) __builtin_prefetch(next[r] + i, 0, 2);
    const lane weight = const_lane_map(weights + i);
    for (std::size_t r = 0; r < Rows; ++r) sums[r] += const_lane_map(rows[r] + i) * weight;
  }
  rows_array<Rows> result;
  for (std::size_t r = 0; r < Rows; ++r) result[static_cast<Eigen::Index>(r)] = sums[r].sum();
  for (; i < size; ++i) {
    for (std::size_t r = 0; r < Rows; ++r) result[static_cast<Eigen::Index>(r)] += rows[r][i] * weights[i];
  }
  return result;
}

/// Computes gradient += sum over the rows of factor * x, for features [first, last); `first` begins a lane.
template <int Rows>
void add_rows(const row_pointers<Rows>& rows, const row_pointers<Rows>& next, std::size_t first, std::size_t last,
              const rows_array<Rows>& factors, float* gradient) {
  std::size_t i = first;
  for (; i + lane_width <= last; i += lane_width) {
    for (std::size_t r = (Rows + 1) / 2; r < Rows; ++r) __builtin_prefetch(next[r] + i, 0, 2);
    lane sum = const_lane_map(gradient + i);
    for (std::size_t r = 0; r < Rows; ++r) sum += const_lane_map(rows[r] + i) * factors[static_cast<Eigen::Index>(r)];
    Eigen::Map<lane>(gradient + i) = sum;
  }
  for (; i < last; ++i) {
    for (std::size_t r = 0; r < Rows; ++r) gradient[i] += rows[r][i] * factors[static_cast<Eigen::Index>(r)];
  }
}

/// Adds the log-losses of samples with margins y (weights . x + bias) to `sums`. Returns sigmoid(-margin) for each
/// sample; this times -y is the derivative by weights . x. Exponentials have only non-positive arguments, so that
/// nothing overflows: log(1 + exp(-m)) = max(-m, 0) + log(1 + exp(-|m|)).
template <int Rows>
rows_array<Rows> log_loss(const rows_array<Rows>& margins, totals& sums) {
  const rows_array<Rows> small = (-margins.abs()).exp();
  // Eigen's exponential clamps its argument, which would turn a NaN into a finite number.
  sums.loss += margins.isFinite().all() ? static_cast<double>(((-margins).max(0.0f) + small.log1p()).sum())
                                        : std::numeric_limits<double>::quiet_NaN();
  sums.correct += static_cast<std::uint64_t>((margins > 0.0f).count());
  return (margins > 0.0f).select(small, 1.0f) / (1.0f + small);
}

/// The input of a pass over the samples sample(0) to sample(size - 1).
template <class Sample>
struct batch_view {
  const muster::dataset& data;
  const Sample& sample;
  std::span<const float> targets;
  const model_view& model;
  float scale;
  std::size_t size;  // Number of samples in the list.
};

template <int Rows, class Sample>
row_pointers<Rows> rows_at(const batch_view<Sample>& batch, std::size_t at) {
  row_pointers<Rows> rows;
  for (std::size_t r = 0; r < Rows; ++r)
    rows[r] = batch.data.row(batch.sample(std::min(at + r, batch.size - 1))).data();
  return rows;
}

/// Adds the losses of dense samples [at, at + Rows) to `sums`; returns each sample's factor in the gradient.
template <int Rows, class Sample>
rows_array<Rows> dense_factors(const batch_view<Sample>& batch, std::size_t at, totals& sums) {
  rows_array<Rows> signs;
  for (std::size_t r = 0; r < Rows; ++r) signs[static_cast<Eigen::Index>(r)] = batch.targets[batch.sample(at + r)];
  const row_pointers<Rows> rows = rows_at<Rows>(batch, at);
  const rows_array<Rows> outputs =
      dot<Rows>(rows, rows_at<Rows>(batch, at + Rows), batch.data.features(), batch.model.weights.data()) +
      batch.model.bias;
  return -batch.scale * signs * log_loss<Rows>(signs * outputs, sums);
}

template <class Sample>
float sparse_factor(const batch_view<Sample>& batch, std::size_t at, totals& sums) {
  const std::size_t id = batch.sample(at);
  const muster::sparse_row row = batch.data.sparse(id);
  float output = batch.model.bias;
  for (std::size_t k = 0; k < row.indices.size(); ++k) output += row.values[k] * batch.model.weights[row.indices[k]];
  const float sign = batch.targets[id];
  return -batch.scale * sign * log_loss<1>(rows_array<1>(sign * output), sums)[0];
}

/// Calls use(std::integral_constant<int, rows>, first sample) for groups of dense samples, in their order.
template <class Use>
void over_groups(std::size_t first, std::size_t last, const Use& use) {
  std::size_t at = first;
  for (; at + rows_at_once <= last; at += rows_at_once) use(std::integral_constant<int, rows_at_once>(), at);
  for (; at + 2 <= last; at += 2) use(std::integral_constant<int, 2>(), at);
  for (; at < last; ++at) use(std::integral_constant<int, 1>(), at);
}

/// Computes the losses of samples [first, last). If there is a gradient, it is computed while the rows are still in
/// cache. If there is memory for factors, the samples' factors in the gradient are stored there.
template <class Sample>
totals add_part(const batch_view<Sample>& batch, std::size_t first, std::size_t last, const gradient_view* gradient,
                std::span<float> later) {
  totals sums;
  if (batch.data.is_sparse()) {
    for (std::size_t at = first; at < last; ++at) {
      const float factor = sparse_factor(batch, at, sums);
      if (!later.empty()) later[at] = factor;
      if (gradient == nullptr) continue;
      const muster::sparse_row row = batch.data.sparse(batch.sample(at));
      for (std::size_t k = 0; k < row.indices.size(); ++k) gradient->weights[row.indices[k]] += factor * row.values[k];
      *gradient->bias += factor;
    }
    return sums;
  }
  over_groups(first, last, [&](auto count, std::size_t at) {
    constexpr int rows = decltype(count)::value;
    const rows_array<rows> factors = dense_factors<rows>(batch, at, sums);
    if (!later.empty()) Eigen::Map<rows_array<rows>>(later.data() + at) = factors;
    if (gradient == nullptr) return;
    add_rows<rows>(rows_at<rows>(batch, at), rows_at<rows>(batch, at + rows), 0, batch.data.features(), factors,
                   gradient->weights.data());
    *gradient->bias += factors.sum();
  });
  return sums;
}

/// Computes the gradient of features [first, last) from all samples' factors, in the order of add_part() and with
/// the same sums.
template <class Sample>
void add_features(const batch_view<Sample>& batch, std::size_t first, std::size_t last, std::span<const float> factors,
                  std::span<float> gradient) {
  if (batch.data.is_sparse()) {
    for (std::size_t at = 0; at < factors.size(); ++at) {
      const muster::sparse_row row = batch.data.sparse(batch.sample(at));
      const auto begin = std::ranges::lower_bound(row.indices, first) - row.indices.begin();
      for (auto k = static_cast<std::size_t>(begin); k < row.indices.size() && row.indices[k] < last; ++k) {
        gradient[row.indices[k]] += factors[at] * row.values[k];
      }
    }
    return;
  }
  over_groups(0, factors.size(), [&](auto count, std::size_t at) {
    constexpr int rows = decltype(count)::value;
    add_rows<rows>(rows_at<rows>(batch, at), rows_at<rows>(batch, at + rows), first, last,
                   Eigen::Map<const rows_array<rows>>(factors.data() + at), gradient.data());
  });
}

/// Number of samples in a task: whole groups.
constexpr std::size_t samples_of_task = 4 * rows_at_once;

template <class Sample>
totals add_all(const batch_view<Sample>& batch, const gradient_view* gradient, const examples::rank_tasks& tasks) {
  const std::size_t count = batch.size;
  const std::size_t parts = (count + samples_of_task - 1) / samples_of_task;
  std::vector<totals> sums(parts);
  std::vector<float> factors(gradient != nullptr && !tasks.are_serial() ? count : 0);
  tasks.run(parts, [&](std::size_t part) {
    const std::size_t first = part * samples_of_task;
    sums[part] = add_part(batch, first, std::min(first + samples_of_task, count),
                          tasks.are_serial() ? gradient : nullptr, factors);
  });
  if (!factors.empty()) {
    constexpr std::size_t ranges = 8;
    const std::size_t features = batch.data.features();
    const std::size_t lanes = (features + lane_width - 1) / lane_width;
    const auto border = [&](std::size_t range) { return std::min(lanes * range / ranges * lane_width, features); };
    tasks.run(ranges, [&](std::size_t range) {
      add_features(batch, border(range), border(range + 1), std::span<const float>(factors), gradient->weights);
    });
    over_groups(0, count, [&](auto group, std::size_t at) {
      constexpr int rows = decltype(group)::value;
      if (!batch.data.is_sparse())
        *gradient->bias += rows_array<rows>(Eigen::Map<const rows_array<rows>>(factors.data() + at)).sum();
    });
    for (std::size_t at = 0; at < count && batch.data.is_sparse(); ++at) *gradient->bias += factors[at];
  }
  totals all;
  for (const auto& each : sums) all += each;
  return all;
}

}  // namespace

totals add_gradient(const muster::dataset& data, std::span<const muster::sample_id> samples,
                    std::span<const float> targets, const model_view& model, float scale, const gradient_view& gradient,
                    const examples::rank_tasks& tasks) {
  const auto sample = [&](std::size_t i) -> std::size_t { return samples[i]; };
  return add_all(batch_view<decltype(sample)>{data, sample, targets, model, scale, samples.size()}, &gradient, tasks);
}

totals evaluate(const muster::dataset& data, std::size_t first, std::size_t last, std::span<const float> targets,
                const model_view& model, const examples::rank_tasks& tasks) {
  const auto sample = [&](std::size_t i) { return first + i; };
  return add_all(batch_view<decltype(sample)>{data, sample, targets, model, 0.0f, last - first}, nullptr, tasks);
}

}  // namespace logistic
