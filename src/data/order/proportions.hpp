// Which source of a mixture each position of an epoch is of; private to mixtures and to the order of samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace muster::inline v0::detail {

/// A pattern of positions, repeated without end: of each period every part has as many as its weight is, spread so
/// evenly that it never is a whole position ahead of its proportion or behind it, up to any position. (Earliest
/// deadline first within quotas; Steiner and Yeomans 1993, https://doi.org/10.1287/mnsc.39.6.728.)
class proportions {
 public:
  /// Of parts that have so many records and such weights, none of them 0.
  proportions(std::vector<std::uint64_t> sizes, std::vector<std::uint64_t> weights)
      : sizes_(std::move(sizes)),
        weights_(std::move(weights)),
        period_(std::accumulate(weights_.begin(), weights_.end(), std::uint64_t{0})) {
    std::vector<std::uint64_t> counts(weights_.size());
    pattern_.reserve(period_);
    for (std::uint64_t position = 0; position < period_; ++position) {
      std::size_t chosen = weights_.size();
      std::uint64_t earliest = 0;
      for (std::size_t part = 0; part < weights_.size(); ++part) {
        const std::uint64_t weight = weights_[part];
        if (counts[part] * period_ >= (position + 1) * weight) continue;  // it would be ahead
        const std::uint64_t deadline = ((counts[part] + 1) * period_ + weight - 1) / weight;
        if (chosen != weights_.size() && deadline >= earliest) continue;
        chosen = part;
        earliest = deadline;
      }
      pattern_.push_back({static_cast<std::uint32_t>(chosen), static_cast<std::uint32_t>(counts[chosen]++)});
    }
    const std::uint64_t all = std::accumulate(sizes_.begin(), sizes_.end(), std::uint64_t{0});
    for (const std::uint64_t weight : weights_) in_epoch_.push_back(all / period_ * weight);
    for (std::uint64_t position = 0; position < all % period_; ++position) ++in_epoch_[pattern_[position].part];
  }

  [[nodiscard]] std::size_t parts() const noexcept { return sizes_.size(); }
  /// Records of a part.
  [[nodiscard]] std::uint64_t size(std::size_t part) const noexcept { return sizes_[part]; }
  [[nodiscard]] std::uint64_t period() const noexcept { return period_; }

  /// The part that a position is of, and how many positions before it are of that part too.
  struct place {
    std::size_t part;
    std::uint64_t before;
  };
  [[nodiscard]] place at(std::uint64_t position) const noexcept {
    const auto [part, before] = pattern_[position % period_];
    return {part, position / period_ * weights_[part] + before};
  }
  /// How many positions of an epoch are of a part; an epoch has as many as there are records.
  [[nodiscard]] std::uint64_t in_epoch(std::size_t part) const noexcept { return in_epoch_[part]; }

 private:
  struct entry {
    std::uint32_t part;
    std::uint32_t before;  // in this period
  };
  std::vector<std::uint64_t> sizes_, weights_, in_epoch_;
  std::uint64_t period_;
  std::vector<entry> pattern_;
};

}  // namespace muster::inline v0::detail
