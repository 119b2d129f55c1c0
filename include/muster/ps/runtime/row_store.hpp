// The rows of a sparse range: all rows, or the rows with recent pushes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <muster/core/hash.hpp>

#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

/// An index of rows under 64-bit keys, in the order of insertion. Open addressing, with one array for all rows, so that
/// a row is one or two cache lines away from its key.
class row_index {
 public:
  static constexpr std::uint32_t none = 0xffffffff;

  [[nodiscard]] std::uint32_t find(std::uint64_t key) const noexcept {
    return slots_.empty() ? none : slots_[slot_of(key)];
  }

  /// Returns the row with that key. Inserts a row at the end if there is none.
  std::uint32_t find_or_add(std::uint64_t key) {
    if (2 * (keys_.size() + 1) > slots_.size()) grow();
    auto& slot = slots_[slot_of(key)];
    if (slot == none) {
      slot = static_cast<std::uint32_t>(keys_.size());
      keys_.push_back(key);
    }
    return slot;
  }

  [[nodiscard]] const std::vector<std::uint64_t>& keys() const noexcept { return keys_; }

 private:
  [[nodiscard]] std::size_t slot_of(std::uint64_t key) const noexcept {
    const std::size_t last = slots_.size() - 1;
    std::size_t at = static_cast<std::size_t>(mix(key)) & last;
    while (slots_[at] != none && keys_[slots_[at]] != key) at = (at + 1) & last;
    return at;
  }

  void grow() {
    slots_.assign(std::max<std::size_t>(16, 2 * slots_.size()), none);
    for (std::uint32_t row = 0; row < keys_.size(); ++row) slots_[slot_of(keys_[row])] = row;
  }

  std::vector<std::uint64_t> keys_;   // by row
  std::vector<std::uint32_t> slots_;  // row numbers, `none` if free; the size is a power of two
};

/// The size and limits of a table's rows.
struct row_shape {
  std::size_t width = 1;       ///< values in a row
  std::size_t stride = 1;      ///< floats in a row, including the update function's state
  float initial = 0;           ///< each value before the first push
  std::size_t most_rows = 0;   ///< maximum for a range; 0: no limit
  std::uint64_t most_age = 0;  ///< maximum number of pushes to the range since the last push to the row; 0: no limit

  [[nodiscard]] bool is_bounded() const noexcept { return most_rows > 0 || most_age > 0; }
};

/// Rows under keys. The contents depend only on the pushes and their order, so that all servers of a chain remove the
/// same rows. Access to a row costs O(1). Each removal costs O(rows), and removes an eighth of the rows.
class row_store {
 public:
  /// A row for writing, valid until the next call.
  struct touched_row {
    std::span<float> values;
    std::uint64_t& times;  ///< number of updates to the row
  };

  /// Notes that a push begins: the age of every row grows by one.
  void next_push(const row_shape& shape) {
    ++pushes_;
    // Rows that are too old count as removed. They are actually removed at intervals.
    if (shape.most_age > 0 && pushes_ % (shape.most_age / 4 + 1) == 0)
      drop(shape, [&](std::size_t row) { return is_old(shape, row); });
  }

  /// Returns the row with that key for a push. Inserts a row if there is none, and resets a row that is too old.
  touched_row touch(const row_shape& shape, std::uint64_t key) {
    std::size_t at = index_.find(key);
    const bool fresh = at == row_index::none;
    if (fresh) {
      if (shape.most_rows > 0 && times_.size() >= shape.most_rows) drop_excess(shape);
      at = index_.find_or_add(key);
      values_.resize(values_.size() + shape.stride);
      times_.push_back(0);
      if (shape.is_bounded()) touched_.push_back(0);
    }
    const auto all = std::span(values_).subspan(at * shape.stride, shape.stride);
    if (fresh || is_old(shape, at)) {
      std::ranges::fill(all, 0.0f);
      std::fill_n(all.begin(), shape.width, shape.initial);
      times_[at] = 0;
    }
    if (shape.is_bounded()) touched_[at] = pushes_;
    return {all, times_[at]};
  }

  /// Returns the row with that key, or an empty span if there is none or the row is too old.
  [[nodiscard]] std::span<const float> find(const row_shape& shape, std::uint64_t key) const noexcept {
    const std::size_t at = index_.find(key);
    if (at == row_index::none || is_old(shape, at)) return {};
    return std::span(values_).subspan(at * shape.stride, shape.stride);
  }

  template <class Visit>
  void visit(const row_shape& shape, const Visit& visit_row) const {
    for (std::size_t row = 0; row < times_.size(); ++row)
      visit_row(index_.keys()[row], std::span(values_).subspan(row * shape.stride, shape.stride));
  }

  /// Writes the rows in the checkpoint format: count, keys, numbers of updates, rows. Rows that are too old are
  /// omitted.
  void list(const row_shape& shape, muster::detail::wire_writer& writer) const {
    std::vector<std::size_t> row_count;
    for (std::size_t row = 0; row < times_.size(); ++row) {
      if (!is_old(shape, row)) row_count.push_back(row);
    }
    writer.add(std::uint64_t{row_count.size()});
    for (const auto row : row_count) writer.add(index_.keys()[row]);
    for (const auto row : row_count) writer.add(times_[row]);
    for (const auto row : row_count)
      writer.add_bytes(std::as_bytes(std::span(values_).subspan(row * shape.stride, shape.stride)));
  }

  void save(muster::detail::wire_writer& writer) const {
    writer.add(pushes_, std::uint64_t{times_.size()});
    writer.add_bytes(std::as_bytes(std::span(index_.keys())));
    writer.add_bytes(std::as_bytes(std::span(times_)));
    writer.add_bytes(std::as_bytes(std::span(touched_)));
    writer.add_bytes(std::as_bytes(std::span(values_)));
  }

  /// Reads the output of `save`. Returns false for bytes that `save` cannot have written.
  [[nodiscard]] bool load(const row_shape& shape, muster::detail::wire_reader& reader) {
    *this = {};
    pushes_ = reader.number<std::uint64_t>();
    const std::size_t row_count =
        reader.count(2 * sizeof(std::uint64_t) + shape.stride * sizeof(float), std::size_t{row_index::none} - 1);
    for (std::size_t i = 0; i < row_count; ++i) {
      if (index_.find_or_add(reader.number<std::uint64_t>()) != i) return false;
    }
    times_.resize(row_count);
    touched_.resize(shape.is_bounded() ? row_count : 0);
    values_.resize(row_count * shape.stride);
    reader.read_all(std::span(times_));
    reader.read_all(std::span(touched_));
    reader.read_all(std::span(values_));
    return reader.good() && std::ranges::all_of(touched_, [&](auto touched) { return touched <= pushes_; });
  }

 private:
  [[nodiscard]] bool is_old(const row_shape& shape, std::size_t row) const noexcept {
    return shape.most_age > 0 && pushes_ - touched_[row] > shape.most_age;
  }

  // Removes an eighth of the rows, with the oldest last push. Among rows of equal age, smaller keys are removed first.
  void drop_excess(const row_shape& shape) {
    std::vector<std::uint32_t> order(times_.size());
    std::iota(order.begin(), order.end(), 0u);
    const auto count = std::max<std::size_t>(1, order.size() / 8);
    const auto& keys = index_.keys();
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count - 1), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) {
                       return std::pair(touched_[a], keys[a]) < std::pair(touched_[b], keys[b]);
                     });
    std::vector<bool> removed(order.size(), false);
    for (std::size_t i = 0; i < count; ++i) removed[order[i]] = true;
    drop(shape, [&](std::size_t row) { return removed[row]; });
  }

  // Removes the selected rows. The other rows keep their order.
  template <class Drop>
  void drop(const row_shape& shape, const Drop& is_removed) {
    row_store remaining;
    remaining.pushes_ = pushes_;
    for (std::size_t row = 0; row < times_.size(); ++row) {
      if (is_removed(row)) continue;
      (void)remaining.index_.find_or_add(index_.keys()[row]);
      const auto row_begin = values_.begin() + static_cast<std::ptrdiff_t>(row * shape.stride);
      remaining.values_.insert(remaining.values_.end(), row_begin,
                               row_begin + static_cast<std::ptrdiff_t>(shape.stride));
      remaining.times_.push_back(times_[row]);
      remaining.touched_.push_back(touched_[row]);
    }
    *this = std::move(remaining);
  }

  row_index index_;
  std::vector<float> values_;           // by row
  std::vector<std::uint64_t> times_;    // by row: number of updates
  std::vector<std::uint64_t> touched_;  // by row, for bounded tables: number of the last push to the row
  std::uint64_t pushes_ = 0;
};

}}}  // namespace muster::v0::ps::detail
