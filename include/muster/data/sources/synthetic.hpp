// Generated data that stands in for real data where that cannot be had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <muster/data/dataset.hpp>

namespace muster { inline namespace v0 {

/// Features of a row of synthetic_epsilon(), as many as the epsilon dataset has.
inline constexpr std::size_t epsilon_features = 2000;

/// What else synthetic_epsilon() can be asked for.
struct epsilon_options {
  /// The first row to make of the endless table that the seed stands for. Rows 0 .. n - 1 to train on and rows from n
  /// on to test with come from the same model and have nothing in common.
  std::uint64_t first_row = 0;
  /// Threads to make them with; 0 means as many as this process may use. The rows are the same for any number.
  int threads = 0;
};

/// Rows `first_row` .. `first_row + rows - 1` of a table that stands in for the epsilon dataset of the Pascal Large
/// Scale Learning Challenge, which is too large to ship: the same shape (2,000 dense features of rows that have unit
/// length, labels -1 and +1) and about the same difficulty, but none of its numbers.
///
/// A feature is near to normal around 0; the j-th has a standard deviation in proportion to 1 / (1 + j / 10), so that,
/// as in real data, some directions matter more than others. The label is the sign of a linear function of the row, the
/// model of the seed, plus noise; one label in fifty is turned over besides. Together they turn over 9 of 100, most of
/// them near the border: no linear model gets beyond 91 %, nor a log-loss far below 0.26.
///
/// A row is a function of (seed, row), bit for bit the same on every machine. 8,000 bytes a row. Throws
/// configuration_error for no rows.
[[nodiscard]] dataset synthetic_epsilon(std::size_t rows, std::uint64_t seed, const epsilon_options& options = {});

/// The weights of the linear function behind the labels of a seed: the best linear model there is, of unit length.
[[nodiscard]] std::vector<float> epsilon_model(std::uint64_t seed);

}}  // namespace muster::v0
