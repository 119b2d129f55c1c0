// Conversion of numbers to labels. Private to muster's own sources.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// Returns a number of a file as a label, or NaN if it cannot be a label: a label is finite, and a number is not
/// rounded to another whole number. A fraction, such as a target of regression, becomes the nearest float32, and -0
/// becomes 0.
template <class T>
[[nodiscard]] float label_of(T value) noexcept {
  constexpr float none = std::numeric_limits<float>::quiet_NaN();
  const auto label = static_cast<float>(value);
  if constexpr (std::integral<T>) {
    constexpr float behind = 2 * static_cast<float>(std::numeric_limits<T>::max() / 2 + 1);
    return label < behind && static_cast<T>(label) == value ? label : none;
  } else {
    if (!std::isfinite(label) || (static_cast<T>(label) != value && label == std::trunc(label))) return none;
    return label + 0.0f;
  }
}

/// Returns the description of a record with an invalid label: problem (why) suggestion.
[[nodiscard]] inline std::string no_label(std::string_view label, std::string_view owner = "") {
  return "label " + std::string(label) + std::string(owner) +
         " cannot be used (a label must be finite, and conversion to float32 must not change a whole number); correct "
         "it, or leave the record out as a bad record";
}

/// The description of a record without a label.
inline constexpr const char* missing_label =
    "the label is missing (missing labels are never filled in, even if missing features are); add a label, or leave "
    "the record out as a bad record";

}}}}  // namespace muster::v0::data::detail

#include <muster/core/detail/exact_end.hpp>
