// A histogram of integers over a wide range, exact to a factor of two.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace muster { inline namespace v0 {

/// A histogram that counts numbers by their highest bit: 0, 1, 2 to 3, 4 to 7 and so on. A plain value of doubles
/// (exact below 2^53), so that a sum over ranks adds histograms.
struct histogram {
  static constexpr std::size_t buckets = 65;
  std::array<double, buckets> counts{};
  double total = 0;  ///< sum of the numbers

  /// Counts a number, or all numbers of another histogram. O(1) and O(buckets).
  void add(std::uint64_t value) noexcept {
    ++counts[static_cast<std::size_t>(std::bit_width(value))];
    total += static_cast<double>(value);
  }
  histogram& operator+=(const histogram& other) noexcept {
    for (std::size_t i = 0; i < buckets; ++i) counts[i] += other.counts[i];
    total += other.total;
    return *this;
  }
  /// Returns how many numbers were counted.
  [[nodiscard]] double count() const noexcept {
    double all = 0;
    for (const double bucket_count : counts) all += bucket_count;
    return all;
  }
  [[nodiscard]] double mean() const noexcept { return total == 0 ? 0 : total / count(); }
  /// Returns an upper bound for this share of the counted numbers, exact to a factor of two: the largest number of a
  /// bucket.
  [[nodiscard]] double at_most(double share) const noexcept {
    const double target = share * count();
    double below = 0;
    std::size_t bucket = 0;
    for (std::size_t i = 0; i < buckets && below < target; ++i) {
      below += counts[i];
      bucket = i;
    }
    return static_cast<double>(bucket == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bucket) - 1);
  }
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
