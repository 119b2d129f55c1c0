// Rows with few of very many features, similar to data of clicks on advertisements.
#pragma once

#include <cstddef>
#include <cstdint>

#include <muster/data/dataset.hpp>

namespace logistic {

/// Number of features that the rows of `synthetic_clicks` may have.
inline constexpr std::size_t click_features = 10'000'000;

/// Returns rows `first_row` .. `first_row + rows - 1` of an endless table. A row has up to 30 features with value 1,
/// out of ten million. Few features occur in most rows and most features in few rows (the share of the first n features
/// is the sixteenth root of n / 10^7). Each feature has a hidden weight. The label is the sign of the sum over these
/// weights, inverted in one of twenty rows. A model of as many weights can learn the weights of frequent features. The
/// result is a function of (seed, row), equal on every machine. Throws configuration_error for zero rows.
[[nodiscard]] muster::dataset synthetic_clicks(std::size_t rows, std::uint64_t seed, std::uint64_t first_row = 0);

}  // namespace logistic
