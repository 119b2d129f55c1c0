// Rows of few features out of very many, as those of clicks on advertisements are.
#pragma once

#include <cstddef>
#include <cstdint>

#include <muster/data/dataset.hpp>

namespace logistic {

/// Features that the rows of `synthetic_clicks` may have.
inline constexpr std::size_t click_features = 10'000'000;

/// Rows `first_row` .. `first_row + rows - 1` of an endless table of up to 30 features of value 1 each, of ten million:
/// few in most rows and most in few (the share of the first n of them is the sixteenth root of n / 10^7). Each feature
/// has a hidden weight, and the label is the sign of their sum, turned over in one row of twenty: what a model of as
/// many weights can learn, from those that it meets often enough. A function of (seed, row), the same on every machine.
/// Throws configuration_error for no rows.
[[nodiscard]] muster::dataset synthetic_clicks(std::size_t rows, std::uint64_t seed, std::uint64_t first_row = 0);

}  // namespace logistic
