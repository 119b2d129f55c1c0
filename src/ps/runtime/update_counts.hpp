// How many updates each element of a dense range has had.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster { inline namespace v0 { namespace ps::detail {

/// Runs of elements with equal counts, one behind the other: a single one where pushes are for the whole range, or for
/// pieces that make it up. A change costs O(runs), without an allocation once there were as many.
class update_counts {
 public:
  struct run {
    std::size_t end;
    std::uint64_t times;
  };

  update_counts() = default;
  explicit update_counts(std::size_t size) : runs_{{size, 0}} {}

  [[nodiscard]] std::span<const run> runs() const noexcept { return runs_; }
  /// One more of the elements [first, last): visit(begin, end, times) for each run of them.
  template <class Visit>
  void add(std::size_t first, std::size_t last, const Visit& visit) {
    change(first, last, [&, begin = first](run& one) mutable {
      visit(begin, one.end, ++one.times);
      begin = one.end;
    });
  }
  void set(std::size_t first, std::size_t last, std::uint64_t times) {
    change(first, last, [&](run& one) { one.times = times; });
  }

 private:
  // The run that begins there: one is cut in two for it if need be.
  std::size_t cut(std::size_t at) {
    auto found = std::ranges::upper_bound(runs_, at, {}, &run::end);
    const std::size_t begin = found == runs_.begin() ? 0 : std::prev(found)->end;
    if (found != runs_.end() && begin < at) found = runs_.insert(found, {at, found->times}) + 1;
    return static_cast<std::size_t>(found - runs_.begin());
  }
  template <class Change>
  void change(std::size_t first, std::size_t last, Change change_one) {
    if (first == last) return;
    const std::size_t from = cut(first);
    const std::size_t to = cut(last);
    for (std::size_t i = from; i < to; ++i) change_one(runs_[i]);
    // Neighbours that are alike now are one: the last of them has their end.
    std::size_t kept = from == 0 ? 0 : from - 1;
    const std::size_t until = std::min(to + 1, runs_.size());
    for (std::size_t i = kept; i < until; ++i) {
      if (i + 1 == until || runs_[i + 1].times != runs_[i].times) runs_[kept++] = runs_[i];
    }
    runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(kept), runs_.begin() + static_cast<std::ptrdiff_t>(until));
  }

  std::vector<run> runs_;
};

}}}  // namespace muster::v0::ps::detail
