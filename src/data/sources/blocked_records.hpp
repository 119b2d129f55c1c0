// Records that are made in blocks when they are read, and of which the blocks that were made last are kept: what large
// text and tables of a database have in common; private to muster's own sources.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <muster/data/record_source.hpp>
#include "../cache/lru_cache.hpp"

namespace muster::inline v0::detail {

/// The records of a block, in order.
struct record_block {
  std::vector<float> labels;
  std::vector<std::byte> bytes;
  std::size_t width = 0;            ///< floats of a record; 0: they are sparse
  std::vector<std::uint64_t> ends;  ///< of each sparse record, in `bytes`
  std::vector<bad_record> bad;      ///< by id; theirs are zeros

  /// The floats of record `at` of the block.
  [[nodiscard]] std::span<float> row(std::size_t at) noexcept {
    return {reinterpret_cast<float*>(bytes.data()) + at * width, width};
  }
  /// Bytes of memory.
  [[nodiscard]] std::size_t size() const noexcept {
    return sizeof *this + bytes.size() + labels.size() * sizeof(float) + ends.size() * sizeof(std::uint64_t) +
           bad.size() * sizeof(bad_record);
  }
};

/// What blocked_records is made of.
struct block_index {
  std::string name;
  std::uint64_t digest = 0;
  record_schema schema;               ///< of rows of floats, or sparse, with one label
  std::vector<std::uint64_t> firsts;  ///< the first record of each block, and how many there are
  std::uint64_t mean_bytes = 1;       ///< of a record
  bool keep_bad = false;              ///< otherwise a bad record is an error, whatever the reader asks for
  /// Makes the records of a block; called by several threads at once, not of the same block.
  std::function<void(std::size_t number, record_block& to)> make;
};

/// Rows of so many floats, with a label.
[[nodiscard]] inline record_schema dense_schema(std::uint64_t features) {
  return {record_form::fixed, {{"features", dtype::float32, {features}}}, 0, {"label"}};
}

/// A record_source of such blocks.
class blocked_records {
 public:
  /// Keeps up to so many bytes of blocks.
  blocked_records(block_index index, std::size_t cache_bytes);

  [[nodiscard]] const std::string& name() const noexcept { return state_->index.name; }
  [[nodiscard]] std::uint64_t size() const noexcept { return state_->index.firsts.back(); }
  [[nodiscard]] std::uint64_t digest() const noexcept { return state_->index.digest; }
  [[nodiscard]] const record_schema& schema() const noexcept { return state_->index.schema; }
  /// Records that are better read together: in block_window order, a block has so many.
  [[nodiscard]] std::uint64_t block_records() const noexcept;
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;

 private:
  struct state {
    state(block_index of, std::size_t cache_bytes) : index(std::move(of)), cache(cache_bytes) {}
    block_index index;
    std::uint64_t record_bytes = index.schema.record_bytes();  // 0: sparse
    mutable lru_cache_of<record_block> cache;
    mutable std::array<std::mutex, 64> making;  // of block number modulo their number
  };
  [[nodiscard]] std::size_t block_of(sample_id id) const noexcept;
  [[nodiscard]] std::shared_ptr<const record_block> block(std::size_t number) const;

  std::shared_ptr<const state> state_;
};

}  // namespace muster::inline v0::detail
