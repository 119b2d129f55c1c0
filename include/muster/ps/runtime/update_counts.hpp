// The numbers of updates of a dense range's elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster { inline namespace v0 { namespace ps::detail {

/// Consecutive runs of elements with equal counts. There is a single run if pushes cover the whole range, or pieces
/// that together cover it. A change costs O(runs), without allocations if there were as many runs before.
class update_counts {
 public:
  struct run {
    std::size_t end;
    std::uint64_t times;
  };

  update_counts() = default;
  explicit update_counts(std::size_t size) : runs_{{size, 0}} {}

  [[nodiscard]] std::span<const run> runs() const noexcept { return runs_; }
  /// Increments the counts of the elements [first, last), and calls visit(begin, end, times) for each run among these.
  template <class Visit>
  void add(std::size_t first, std::size_t last, const Visit& visit) {
    change(first, last, [&, begin = first](run& changed) mutable {
      visit(begin, changed.end, ++changed.times);
      begin = changed.end;
    });
  }
  void set(std::size_t first, std::size_t last, std::uint64_t times) {
    change(first, last, [&](run& changed) { changed.times = times; });
  }

 private:
  // Returns the index of the run that begins at `at`, after splitting a run if necessary.
  std::size_t cut(std::size_t at) {
    auto found = std::ranges::upper_bound(runs_, at, {}, &run::end);
    const std::size_t begin = found == runs_.begin() ? 0 : std::prev(found)->end;
    if (found != runs_.end() && begin < at) found = runs_.insert(found, {at, found->times}) + 1;
    return static_cast<std::size_t>(found - runs_.begin());
  }
  template <class Change>
  void change(std::size_t first, std::size_t last, Change change_run) {
    if (first == last) return;
    const std::size_t begin = cut(first);
    const std::size_t end = cut(last);
    for (std::size_t i = begin; i < end; ++i) change_run(runs_[i]);
    // Adjacent runs with equal counts are merged: the last run has the common end.
    std::size_t merged = begin == 0 ? 0 : begin - 1;
    const std::size_t until = std::min(end + 1, runs_.size());
    for (std::size_t i = merged; i < until; ++i) {
      if (i + 1 == until || runs_[i + 1].times != runs_[i].times) runs_[merged++] = runs_[i];
    }
    runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(merged),
                runs_.begin() + static_cast<std::ptrdiff_t>(until));
  }

  std::vector<run> runs_;
};

}}}  // namespace muster::v0::ps::detail
