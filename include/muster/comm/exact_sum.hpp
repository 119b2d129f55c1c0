// Sums that are rounded once: the exact sum of the values, whatever their order, their number and their neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/core/dtype.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A sum of doubles without rounding, as a number with a fixed point (Kulisch): every double is a multiple of the
/// smallest, and the sum of 2^31 doubles fits. Slow: the sum of the few elements whose bits do not fit two doubles.
class exact_accumulator {
 public:
  /// Adds a value, also an infinity or a NaN.
  void add(double value) noexcept;
  /// Returns the sum, rounded to the nearest double. With `to_odd` an inexact sum is instead the neighbour whose last
  /// bit is 1, so that a later conversion to fewer bits rounds the exact sum.
  [[nodiscard]] double sum(bool to_odd) const noexcept;

 private:
  static constexpr int limb_count = 68;  // of 32 bits, and the carries above them
  std::int64_t limbs_[limb_count] = {};  // the first limb counts in units of 2^-1074
  int first_ = limb_count;               // the used limbs
  int last_ = -1;
  bool has_[3] = {false, false, false};  // NaN, infinity, -infinity
};

/// The functions of a reduction, see `reduction`: `combine` adds the elements of two ranks, and `fold` the elements of
/// any number of ranks. Each result is the exact sum, rounded once; with `mean` in `fold` it is divided before the
/// conversion from double, or from the sum of doubles. A zero is +0, and all NaN have the same bits.
struct exact_functions {
  void (*combine)(const void*, std::byte*, const std::byte*, std::size_t, bool);
  void (*fold)(const void*, std::span<std::byte* const>, std::span<const std::byte* const>, std::size_t,
               void (*)(std::byte*, std::size_t, int));
};
/// Returns the functions for float16, bfloat16, float32 or float64.
[[nodiscard]] exact_functions exact_functions_of(dtype type, bool mean) noexcept;

}}}  // namespace muster::v0::detail

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
