// How often whole numbers of a wide range came, to within a factor of two.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace muster { inline namespace v0 {

/// Counts numbers by their highest bit: 0, 1, 2 to 3, 4 to 7 and so on. A plain value of doubles (exact below 2^53), so
/// that a sum over ranks adds histograms.
struct histogram {
  static constexpr std::size_t buckets = 65;
  std::array<double, buckets> counts{};
  double total = 0;  ///< of the numbers

  /// Counts a number, or all of another histogram. O(1) and O(buckets).
  void add(std::uint64_t number) noexcept {
    ++counts[static_cast<std::size_t>(std::bit_width(number))];
    total += static_cast<double>(number);
  }
  histogram& operator+=(const histogram& other) noexcept {
    for (std::size_t i = 0; i < buckets; ++i) counts[i] += other.counts[i];
    total += other.total;
    return *this;
  }
  /// How many numbers came.
  [[nodiscard]] double count() const noexcept {
    double all = 0;
    for (const double one : counts) all += one;
    return all;
  }
  [[nodiscard]] double mean() const noexcept { return total == 0 ? 0 : total / count(); }
  /// A number that this share of those that came is not above, within a factor of two: the largest of its bucket.
  [[nodiscard]] double at_most(double share) const noexcept {
    const double wanted = share * count();
    double below = 0;
    std::size_t bucket = 0;
    for (std::size_t i = 0; i < buckets && below < wanted; ++i) {
      below += counts[i];
      bucket = i;
    }
    return static_cast<double>(bucket == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bucket) - 1);
  }
};

}}  // namespace muster::v0
