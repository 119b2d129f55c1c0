// The rows of one sparse range, all of them or those that were pushed to last.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <muster/core/hash.hpp>

#include "../../core/wire.hpp"

namespace muster { inline namespace v0 { namespace ps::detail {

/// Rows of floats under 64-bit keys, in the order in which they came: open addressing, and one array of all rows, so
/// that a row is one or two cache lines from its key.
class row_index {
 public:
  static constexpr std::uint32_t none = 0xffffffff;

  [[nodiscard]] std::uint32_t find(std::uint64_t key) const noexcept {
    return slots_.empty() ? none : slots_[slot_of(key)];
  }

  /// The row of that key, a new one at the end if there is none.
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
  std::vector<std::uint32_t> slots_;  // rows; none where free; a power of two of them
};

/// What the rows of a table are.
struct row_shape {
  std::size_t width = 1;       ///< values of a row
  std::size_t stride = 1;      ///< with what an update function remembers of them
  float initial = 0;           ///< each value before the first push
  std::size_t most_rows = 0;   ///< of a range; 0: any number
  std::uint64_t most_age = 0;  ///< of a row, in pushes to the range since one was to it; 0: any

  [[nodiscard]] bool is_bounded() const noexcept { return most_rows > 0 || most_age > 0; }
};

/// Rows under keys. What becomes of them is a function of the pushes alone, in their order, so that all servers of a
/// chain drop the same. A row costs O(1); dropping costs O(rows) for each eighth that goes.
class row_store {
 public:
  /// A row for writing, until the next call.
  struct touched_row {
    std::span<float> values;
    std::uint64_t& times;  ///< updates that it has had
  };

  /// A push is about to be carried out: rows are older by one.
  void next_push(const row_shape& shape) {
    ++pushes_;
    // Rows that are too old are as if they were gone; now and then they go.
    if (shape.most_age > 0 && pushes_ % (shape.most_age / 4 + 1) == 0)
      drop(shape, [&](std::size_t row) { return is_old(shape, row); });
  }

  /// The row of that key, which has just been pushed to; a new one if there is none or it is too old.
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

  /// The row of that key; nothing if there is none or it is too old.
  [[nodiscard]] std::span<const float> find(const row_shape& shape, std::uint64_t key) const noexcept {
    const std::size_t at = index_.find(key);
    if (at == row_index::none || is_old(shape, at)) return {};
    return std::span(values_).subspan(at * shape.stride, shape.stride);
  }

  template <class Visit>
  void visit(const row_shape& shape, const Visit& visit_one) const {
    for (std::size_t row = 0; row < times_.size(); ++row)
      visit_one(index_.keys()[row], std::span(values_).subspan(row * shape.stride, shape.stride));
  }

  /// What a checkpoint has of them: count, keys, the number of updates of each, rows; those that are not too old.
  void list(const row_shape& shape, muster::detail::wire_writer& to) const {
    std::vector<std::size_t> rows;
    for (std::size_t row = 0; row < times_.size(); ++row) {
      if (!is_old(shape, row)) rows.push_back(row);
    }
    to.add(std::uint64_t{rows.size()});
    for (const auto row : rows) to.add(index_.keys()[row]);
    for (const auto row : rows) to.add(times_[row]);
    for (const auto row : rows)
      to.add_bytes(std::as_bytes(std::span(values_).subspan(row * shape.stride, shape.stride)));
  }

  void save(muster::detail::wire_writer& to) const {
    to.add(pushes_, std::uint64_t{times_.size()});
    to.add_bytes(std::as_bytes(std::span(index_.keys())));
    to.add_bytes(std::as_bytes(std::span(times_)));
    to.add_bytes(std::as_bytes(std::span(touched_)));
    to.add_bytes(std::as_bytes(std::span(values_)));
  }

  /// What `save` wrote; false for what it cannot have written.
  [[nodiscard]] bool load(const row_shape& shape, muster::detail::wire_reader& in) {
    *this = {};
    pushes_ = in.number<std::uint64_t>();
    const std::size_t rows =
        in.count(2 * sizeof(std::uint64_t) + shape.stride * sizeof(float), std::size_t{row_index::none} - 1);
    for (std::size_t i = 0; i < rows; ++i) {
      if (index_.find_or_add(in.number<std::uint64_t>()) != i) return false;
    }
    times_.resize(rows);
    touched_.resize(shape.is_bounded() ? rows : 0);
    values_.resize(rows * shape.stride);
    in.read_all(std::span(times_));
    in.read_all(std::span(touched_));
    in.read_all(std::span(values_));
    return in.good() && std::ranges::all_of(touched_, [&](auto one) { return one <= pushes_; });
  }

 private:
  [[nodiscard]] bool is_old(const row_shape& shape, std::size_t row) const noexcept {
    return shape.most_age > 0 && pushes_ - touched_[row] > shape.most_age;
  }

  // An eighth of them, those that were pushed to least recently; among equals the smaller keys.
  void drop_excess(const row_shape& shape) {
    std::vector<std::uint32_t> order(times_.size());
    std::iota(order.begin(), order.end(), 0u);
    const auto count = std::max<std::size_t>(1, order.size() / 8);
    const auto& keys = index_.keys();
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count - 1), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) {
                       return std::pair(touched_[a], keys[a]) < std::pair(touched_[b], keys[b]);
                     });
    std::vector<bool> goes(order.size(), false);
    for (std::size_t i = 0; i < count; ++i) goes[order[i]] = true;
    drop(shape, [&](std::size_t row) { return goes[row]; });
  }

  // The others keep their order.
  template <class Drop>
  void drop(const row_shape& shape, const Drop& goes) {
    row_store left;
    left.pushes_ = pushes_;
    for (std::size_t row = 0; row < times_.size(); ++row) {
      if (goes(row)) continue;
      (void)left.index_.find_or_add(index_.keys()[row]);
      const auto from = values_.begin() + static_cast<std::ptrdiff_t>(row * shape.stride);
      left.values_.insert(left.values_.end(), from, from + static_cast<std::ptrdiff_t>(shape.stride));
      left.times_.push_back(times_[row]);
      left.touched_.push_back(touched_[row]);
    }
    *this = std::move(left);
  }

  row_index index_;
  std::vector<float> values_;           // by row
  std::vector<std::uint64_t> times_;    // by row: updates
  std::vector<std::uint64_t> touched_;  // by row, of what is bounded: the push that was to it last
  std::uint64_t pushes_ = 0;
};

}}}  // namespace muster::v0::ps::detail
