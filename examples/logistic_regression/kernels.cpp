#include "kernels.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace logistic {
namespace {

// One vector register of floats: 4 with SSE, 8 with AVX, 16 with AVX-512.
constexpr int lane_width = std::max<int>(EIGEN_MAX_STATIC_ALIGN_BYTES, 16) / int{sizeof(float)};
using lane = Eigen::Array<float, lane_width, 1>;
using const_lane_map = Eigen::Map<const lane>;

template <int Rows>
using rows_array = Eigen::Array<float, Rows, 1>;
template <int Rows>
using row_pointers = std::array<const float*, static_cast<std::size_t>(Rows)>;

constexpr int rows_at_once = 8;

/// weights . x of each of `Rows` dense rows of `size` features.
template <int Rows>
rows_array<Rows> dot(const row_pointers<Rows>& rows, std::size_t size, const float* weights) {
  std::array<lane, static_cast<std::size_t>(Rows)> sums;
  for (auto& sum : sums) sum.setZero();
  std::size_t i = 0;
  for (; i + lane_width <= size; i += lane_width) {
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

/// gradient += sum over the rows of factor * x.
template <int Rows>
void add_rows(const row_pointers<Rows>& rows, std::size_t size, const rows_array<Rows>& factors, float* gradient) {
  std::size_t i = 0;
  for (; i + lane_width <= size; i += lane_width) {
    lane sum = const_lane_map(gradient + i);
    for (std::size_t r = 0; r < Rows; ++r) sum += const_lane_map(rows[r] + i) * factors[static_cast<Eigen::Index>(r)];
    Eigen::Map<lane>(gradient + i) = sum;
  }
  for (; i < size; ++i) {
    for (std::size_t r = 0; r < Rows; ++r) gradient[i] += rows[r][i] * factors[static_cast<Eigen::Index>(r)];
  }
}

/// Adds the log-losses of samples with margins y (weights . x + bias) to `sums` and returns sigmoid(-margin) of each,
/// which times -y is the derivative by weights . x. Only exponentials of what is not positive are taken, so nothing
/// overflows: log(1 + exp(-m)) = max(-m, 0) + log(1 + exp(-|m|)).
template <int Rows>
rows_array<Rows> log_loss(const rows_array<Rows>& margins, totals& sums) {
  const rows_array<Rows> small = (-margins.abs()).exp();
  // Eigen's exponential clamps its argument, which would make a finite number of a NaN.
  sums.loss += margins.isFinite().all() ? static_cast<double>(((-margins).max(0.0f) + small.log1p()).sum())
                                        : std::numeric_limits<double>::quiet_NaN();
  sums.correct += static_cast<std::uint64_t>((margins > 0.0f).count());
  return (margins > 0.0f).select(small, 1.0f) / (1.0f + small);
}

/// Samples [at, at + Rows) of the list `sample(0), sample(1) ...`; without a gradient if `gradient` is null.
template <int Rows, class Sample>
void add_dense(const muster::dataset& data, const Sample& sample, std::size_t at, std::span<const float> targets,
               const model_view& model, float scale, const gradient_view* gradient, totals& sums) {
  row_pointers<Rows> rows;
  rows_array<Rows> signs;
  for (std::size_t r = 0; r < Rows; ++r) {
    const std::size_t id = sample(at + r);
    rows[r] = data.row(id).data();
    signs[static_cast<Eigen::Index>(r)] = targets[id];
  }
  const rows_array<Rows> outputs = dot<Rows>(rows, data.features(), model.weights.data()) + model.bias;
  const rows_array<Rows> slopes = log_loss<Rows>(signs * outputs, sums);
  if (gradient == nullptr) return;
  const rows_array<Rows> factors = -scale * signs * slopes;
  add_rows<Rows>(rows, data.features(), factors, gradient->weights.data());
  *gradient->bias += factors.sum();
}

template <class Sample>
void add_sparse(const muster::dataset& data, const Sample& sample, std::size_t at, std::span<const float> targets,
                const model_view& model, float scale, const gradient_view* gradient, totals& sums) {
  const std::size_t id = sample(at);
  const muster::sparse_row row = data.sparse(id);
  float output = model.bias;
  for (std::size_t k = 0; k < row.indices.size(); ++k) output += row.values[k] * model.weights[row.indices[k]];
  const float slope = log_loss<1>(rows_array<1>(targets[id] * output), sums)[0];
  if (gradient == nullptr) return;
  const float factor = -scale * targets[id] * slope;
  for (std::size_t k = 0; k < row.indices.size(); ++k) gradient->weights[row.indices[k]] += factor * row.values[k];
  *gradient->bias += factor;
}

template <class Sample>
totals add_all(const muster::dataset& data, const Sample& sample, std::size_t count, std::span<const float> targets,
               const model_view& model, float scale, const gradient_view* gradient) {
  totals sums;
  std::size_t at = 0;
  if (data.is_sparse()) {
    for (; at < count; ++at) add_sparse(data, sample, at, targets, model, scale, gradient, sums);
    return sums;
  }
  for (; at + rows_at_once <= count; at += rows_at_once) {
    add_dense<rows_at_once>(data, sample, at, targets, model, scale, gradient, sums);
  }
  for (; at + 2 <= count; at += 2) add_dense<2>(data, sample, at, targets, model, scale, gradient, sums);
  for (; at < count; ++at) add_dense<1>(data, sample, at, targets, model, scale, gradient, sums);
  return sums;
}

}  // namespace

totals add_gradient(const muster::dataset& data, std::span<const muster::sample_id> samples,
                    std::span<const float> targets, const model_view& model, float scale,
                    const gradient_view& gradient) {
  return add_all(
      data, [&](std::size_t i) -> std::size_t { return samples[i]; }, samples.size(), targets, model, scale, &gradient);
}

totals evaluate(const muster::dataset& data, std::size_t first, std::size_t last, std::span<const float> targets,
                const model_view& model) {
  return add_all(
      data, [&](std::size_t i) { return first + i; }, last - first, targets, model, 0.0f, nullptr);
}

}  // namespace logistic
