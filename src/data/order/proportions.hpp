// Which source of a mixture each position of an epoch is of; private to mixtures, shards and the order of samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace muster { inline namespace v0 { namespace detail {

/// A row of positions without end in which every part has its proportion: up to any position it is less than two
/// positions ahead of it or behind (less than one where there are two parts), and exact wherever all proportions are
/// whole. No table: the parts are halved by their weights again and again, and of the positions of a whole each half
/// has its share, rounded to the nearest. Where both halves have about the same weight, half of a deviation and at most
/// half a position come together at each level.
class proportions {
 public:
  /// Of parts that have so many records and such weights, none of them 0; the weights add up to less than 2^63.
  proportions(std::vector<std::uint64_t> sizes, const std::vector<std::uint64_t>& weights) : sizes_(std::move(sizes)) {
    for (const std::uint64_t weight : weights) weights_before_.push_back(weights_before_.back() + weight);
    for (const std::uint64_t size : sizes_) firsts_.push_back(firsts_.back() + size);
    in_epoch_.resize(parts());
    divide(firsts_.back(), 0, parts());
  }

  [[nodiscard]] std::size_t parts() const noexcept { return sizes_.size(); }
  /// Records of a part.
  [[nodiscard]] std::uint64_t size(std::size_t part) const noexcept { return sizes_[part]; }
  /// Records of all parts before it.
  [[nodiscard]] std::uint64_t first(std::size_t part) const noexcept { return firsts_[part]; }
  /// The part that a record is in.
  [[nodiscard]] std::size_t part_of(std::uint64_t record) const noexcept {
    return static_cast<std::size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), record) - firsts_.begin()) - 1;
  }

  /// The part that a position is of, and how many positions before it are of that part too.
  struct place {
    std::size_t part;
    std::uint64_t before;
  };
  /// O(log^2(parts)).
  [[nodiscard]] place at(std::uint64_t position) const noexcept {
    std::size_t first = 0, last = parts();
    while (last - first > 1) {
      const std::size_t middle = middle_of(first, last);
      const std::uint64_t left = share(position, first, middle, last);
      if (share(position + 1, first, middle, last) > left) {
        position = left;
        last = middle;
      } else {
        position -= left;
        first = middle;
      }
    }
    return {first, position};
  }
  /// How many positions of an epoch are of a part; an epoch has as many as there are records.
  [[nodiscard]] std::uint64_t in_epoch(std::size_t part) const noexcept { return in_epoch_[part]; }

 private:
  // Of the parts [first, last), two at least: where the second half by weight begins.
  [[nodiscard]] std::size_t middle_of(std::size_t first, std::size_t last) const noexcept {
    const auto begin = weights_before_.begin();
    const std::uint64_t half = weights_before_[first] + (weights_before_[last] - weights_before_[first]) / 2;
    const auto above = static_cast<std::size_t>(std::lower_bound(begin, begin + std::ptrdiff_t(last), half) - begin);
    const std::size_t nearer =
        above > first && half - weights_before_[above - 1] < weights_before_[above] - half ? above - 1 : above;
    return std::clamp(nearer, first + 1, last - 1);
  }
  // Of the first `positions` of the parts [first, last), how many are of those before `middle`.
  [[nodiscard]] std::uint64_t share(std::uint64_t positions, std::size_t first, std::size_t middle,
                                    std::size_t last) const noexcept {
    __extension__ using wide = unsigned __int128;
    const std::uint64_t whole = weights_before_[last] - weights_before_[first];
    const std::uint64_t part = weights_before_[middle] - weights_before_[first];
    return static_cast<std::uint64_t>((wide{positions} * part + whole / 2) / whole);
  }
  void divide(std::uint64_t positions, std::size_t first, std::size_t last) {
    if (last - first <= 1) {
      if (last > first) in_epoch_[first] = positions;
      return;
    }
    const std::size_t middle = middle_of(first, last);
    const std::uint64_t left = share(positions, first, middle, last);
    divide(left, first, middle);
    divide(positions - left, middle, last);
  }

  std::vector<std::uint64_t> sizes_, in_epoch_;
  std::vector<std::uint64_t> firsts_{0}, weights_before_{0};  // sums of those before, and of all
};

}}}  // namespace muster::v0::detail
