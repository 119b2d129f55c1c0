// What a worker pulled not long ago, to be given again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <muster/ps/table.hpp>

#include "row_index.hpp"

namespace muster::inline v0::ps::detail {

/// Values by range and element, or by key, each with the clock at which they were asked for and the version that came.
/// They are good for so many clocks. Dense ones take as much memory as what was ever pulled of the tables; rows that
/// are too old go when there are twice as many as after the last time. O(1) a row.
class pull_cache {
 public:
  /// Of 0 clocks it keeps nothing.
  pull_cache(const table_layout& layout, std::uint64_t clocks) : layout_(layout), clocks_(clocks) {
    if (clocks_ > 0) kept_.resize(layout.ranges());
  }
  [[nodiscard]] bool is_on() const noexcept { return clocks_ > 0; }

  /// Elements of a dense range, if all were asked for not too long before `now`.
  [[nodiscard]] bool read(range_id range, std::size_t offset, std::span<float> to, std::uint64_t now,
                          std::uint64_t& version) const;
  void keep(range_id range, std::size_t offset, std::span<const float> values, std::uint64_t asked,
            std::uint64_t version);
  /// The row of a key, of the table's width; none if it is too old, or was never asked for.
  [[nodiscard]] std::span<const float> read_row(range_id range, std::uint64_t key, std::uint64_t now,
                                                std::uint64_t& version) const;
  void keep_row(range_id range, std::uint64_t key, std::span<const float> row, std::uint64_t asked,
                std::uint64_t version);
  /// What it has of that range is not so any more.
  void forget(range_id range);

 private:
  struct age {
    std::uint64_t asked = 0;
    std::uint64_t version = 0;
  };
  struct kept_range {
    // Dense: the slice that was pulled last, [begin, end) of the range.
    std::size_t begin = 0, end = 0;
    age of_slice;
    // Sparse.
    row_index rows;
    std::vector<age> ages;
    std::vector<float> values;  // of the slice, or of the rows
    std::size_t sweep_at = 1024;
  };
  [[nodiscard]] bool is_fresh(const age& one, std::uint64_t now) const noexcept { return now <= one.asked + clocks_; }
  void sweep(kept_range& kept, std::size_t width, std::uint64_t now);

  const table_layout& layout_;
  std::uint64_t clocks_;
  std::vector<kept_range> kept_;
};

}  // namespace muster::inline v0::ps::detail
