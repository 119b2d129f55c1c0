// The values that a server keeps: dense ranges as arrays, sparse ones as rows under keys.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/ps/consistency.hpp>
#include <muster/ps/table.hpp>

#include "../protocol/server.hpp"
#include "push_codec.hpp"
#include "row_store.hpp"
#include "update_counts.hpp"

namespace muster::inline v0::ps::detail {

/// See `range_storage`. In messages, a dense push or pull is of `count` elements from the `offset`-th of its range on;
/// a sparse one of `count` keys; their rows follow them in a push. Values and keys are as they lie in memory. Those
/// that `saves` or `restores` have all that there is.
class tables final : public range_storage {
 public:
  tables(const table_layout& layout, const consistency& how, const compression& compress);

  /// `tell` is called before each change of a range, for a caller that still reads what `read` gave.
  void before_change(std::function<void(range_id)> tell) { before_change_ = std::move(tell); }
  /// Whether what `read` gives for that is where the values lie, until they change.
  [[nodiscard]] bool reads_in_place(range_id range, const message& pull) const {
    return pull.flags != saves && layout_.range(range).size != 0;
  }
  [[nodiscard]] std::string problem_with(range_id range, const message& asked) const override;
  void apply(range_id range, const log_entry& entry) override;
  [[nodiscard]] std::span<const std::byte> read(range_id range, const message& pull) override;
  void save(range_id range, muster::detail::wire_writer& to) const override;
  [[nodiscard]] bool load(range_id range, std::span<const std::byte> saved) override;
  void reset(range_id range) override;

 private:
  // What bulk-synchronous pushes of one worker add up to.
  struct sum {
    std::vector<float> dense;
    row_store rows;  // sparse
  };
  struct kept_range {
    buffer<float> dense;         // the values, and behind them the arrays of the update function
    update_counts counts;        // of them
    row_store rows;              // sparse: their values and what the update function remembers of them
    std::map<member, sum> sums;  // of the clock that is open: added up in the order of workers when it is folded
  };

  kept_range& of(range_id range);
  void make(range_id range, kept_range& kept) const;
  void begin_change(range_id range);
  void update_dense(range_id range, kept_range& kept, std::size_t offset, std::span<const float> pushed, float scale);
  void update_run(range_id range, kept_range& kept, std::size_t offset, std::span<const float> pushed,
                  std::uint64_t count, float scale);
  void update_row(range_id range, kept_range& kept, std::uint64_t key, std::span<const float> pushed, float scale);
  [[nodiscard]] const row_shape& shape_of(range_id range) const { return shapes_[layout_.range(range).table]; }
  [[nodiscard]] row_shape shape_of_sums(range_id range) const {
    const std::size_t width = layout_.table_of(range).width;
    return {.width = width, .stride = width};
  }
  void restore(range_id range, kept_range& kept, const log_entry& entry);
  void write_dense(range_id range, const kept_range& kept, muster::detail::wire_writer& to) const;
  void read_dense(range_id range, kept_range& kept, std::size_t offset, std::size_t count,
                  muster::detail::wire_reader& from) const;
  void add_to_sum(range_id range, sum& to, const log_entry& entry, std::span<const float> values) const;
  void fold(range_id range, kept_range& kept, float scale);
  [[nodiscard]] std::span<const float> values_of(range_id range, const log_entry& entry);

  const table_layout& layout_;
  bool bulk_;
  std::vector<std::shared_ptr<const update_function>> updates_;  // by table
  std::vector<row_shape> shapes_;                                // by table
  std::vector<kept_range> kept_;
  std::vector<std::byte> answer_;
  std::vector<float> aligned_;  // of what is pushed: kept, or each push would allocate
  std::function<void(range_id)> before_change_;
  any_codec codec_;
};

}  // namespace muster::inline v0::ps::detail
