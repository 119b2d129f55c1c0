// The source in a mixture for each position of an epoch. Private to mixtures, shards and the order of samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// An endless sequence of positions in which every part has its proportion. Up to any position each part is less than
/// two positions ahead of or behind its proportion (less than one position if there are two parts), and exact if all
/// proportions are whole numbers. No table is needed: the parts are divided into two halves by weight, recursively, and
/// each half receives its share of the positions, rounded to the nearest integer. If both halves have about the same
/// weight, each level adds at most half a position to half of the deviation from the level above.
class proportions {
 public:
  /// Takes the number of records and the weight of every part. All must be greater than 0. The sum of the weights must
  /// be less than 2^63.
  proportions(std::vector<std::uint64_t> sizes, const std::vector<std::uint64_t>& weights) : sizes_(std::move(sizes)) {
    for (const std::uint64_t weight : weights) weights_before_.push_back(weights_before_.back() + weight);
    for (const std::uint64_t size : sizes_) first_records_.push_back(first_records_.back() + size);
    in_epoch_.resize(parts());
    divide(first_records_.back(), 0, parts());
  }

  [[nodiscard]] std::size_t parts() const noexcept { return sizes_.size(); }
  /// Returns the number of records in a part.
  [[nodiscard]] std::uint64_t size(std::size_t part) const noexcept { return sizes_[part]; }
  /// Returns the number of records in all parts before `part`.
  [[nodiscard]] std::uint64_t first_record(std::size_t part) const noexcept { return first_records_[part]; }
  /// Returns the part that contains a record.
  [[nodiscard]] std::size_t part_of(std::uint64_t record) const noexcept {
    return static_cast<std::size_t>(std::upper_bound(first_records_.begin(), first_records_.end(), record) -
                                    first_records_.begin()) -
           1;
  }

  /// The part to which a position belongs, and the number of earlier positions of the same part.
  struct place {
    std::size_t part;
    std::uint64_t before;
  };
  /// Returns the part, and the number of earlier positions of the part, for a position. O(log^2(parts)).
  [[nodiscard]] place place_of(std::uint64_t position) const noexcept {
    std::size_t first = 0, last = parts();
    while (last - first > 1) {
      const std::size_t middle = middle_of(first, last);
      const std::uint64_t first_half = share(position, first, middle, last);
      if (share(position + 1, first, middle, last) > first_half) {
        position = first_half;
        last = middle;
      } else {
        position -= first_half;
        first = middle;
      }
    }
    return {first, position};
  }
  /// Returns the number of positions of a part in an epoch. An epoch has as many positions as there are records.
  [[nodiscard]] std::uint64_t in_epoch(std::size_t part) const noexcept { return in_epoch_[part]; }

 private:
  // Returns the first part of the second half by weight, for the parts [first, last). There must be at least two parts.
  [[nodiscard]] std::size_t middle_of(std::size_t first, std::size_t last) const noexcept {
    const auto begin = weights_before_.begin();
    const std::uint64_t half = weights_before_[first] + (weights_before_[last] - weights_before_[first]) / 2;
    const auto above = static_cast<std::size_t>(std::lower_bound(begin, begin + std::ptrdiff_t(last), half) - begin);
    const std::size_t nearer =
        above > first && half - weights_before_[above - 1] < weights_before_[above] - half ? above - 1 : above;
    return std::clamp(nearer, first + 1, last - 1);
  }
  // Returns the number of positions, among the first `positions` of the parts [first, last), that belong to parts
  // before `middle`.
  [[nodiscard]] std::uint64_t share(std::uint64_t positions, std::size_t first, std::size_t middle,
                                    std::size_t last) const noexcept {
    __extension__ using wide = unsigned __int128;
    const std::uint64_t total = weights_before_[last] - weights_before_[first];
    const std::uint64_t part = weights_before_[middle] - weights_before_[first];
    return static_cast<std::uint64_t>((wide{positions} * part + total / 2) / total);
  }
  void divide(std::uint64_t positions, std::size_t first, std::size_t last) {
    if (last - first <= 1) {
      if (last > first) in_epoch_[first] = positions;
      return;
    }
    const std::size_t middle = middle_of(first, last);
    const std::uint64_t first_half = share(positions, first, middle, last);
    divide(first_half, first, middle);
    divide(positions - first_half, middle, last);
  }

  std::vector<std::uint64_t> sizes_, in_epoch_;
  // Sums over the preceding parts; the last element is the total.
  std::vector<std::uint64_t> first_records_{0}, weights_before_{0};
};

}}}}  // namespace muster::v0::data::detail
