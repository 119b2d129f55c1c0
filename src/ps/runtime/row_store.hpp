// The rows of one sparse range, all of them or those that were pushed to last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "../../core/wire.hpp"
#include "row_index.hpp"

namespace muster::inline v0::ps::detail {

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
  void next_push(const row_shape& shape);
  /// The row of that key, which has just been pushed to; a new one if there is none or it is too old.
  touched_row touch(const row_shape& shape, std::uint64_t key);
  /// The row of that key; nothing if there is none or it is too old.
  [[nodiscard]] std::span<const float> find(const row_shape& shape, std::uint64_t key) const noexcept;

  template <class Visit>
  void visit(const row_shape& shape, const Visit& visit_one) const {
    for (std::size_t row = 0; row < times_.size(); ++row)
      visit_one(index_.keys()[row], std::span(values_).subspan(row * shape.stride, shape.stride));
  }

  /// What a checkpoint has of them: count, keys, the number of updates of each, rows; those that are not too old.
  void list(const row_shape& shape, muster::detail::wire_writer& to) const;
  void save(muster::detail::wire_writer& to) const;
  /// What `save` wrote; false for what it cannot have written.
  [[nodiscard]] bool load(const row_shape& shape, muster::detail::wire_reader& in);

 private:
  [[nodiscard]] bool is_old(const row_shape& shape, std::size_t row) const noexcept {
    return shape.most_age > 0 && pushes_ - touched_[row] > shape.most_age;
  }
  void drop_excess(const row_shape& shape);
  template <class Drop>
  void drop(const row_shape& shape, const Drop& goes);

  row_index index_;
  std::vector<float> values_;           // by row
  std::vector<std::uint64_t> times_;    // by row: updates
  std::vector<std::uint64_t> touched_;  // by row, of what is bounded: the push that was to it last
  std::uint64_t pushes_ = 0;
};

}  // namespace muster::inline v0::ps::detail
