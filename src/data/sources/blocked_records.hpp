// Records that are made in blocks when they are read, and of which the blocks that were made last are kept: what large
// text and tables of a database have in common; private to muster's own sources.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/sources/mapped_file.hpp>
#include "../cache/lru_cache.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Where rows that are parsed go: each pointer is to what is of the first of them.
struct row_places {
  float* labels = nullptr;
  std::size_t width = 0;                   ///< features of a row
  float* values = nullptr;                 ///< of dense rows, or of the entries of sparse ones
  std::size_t step = 0;                    ///< floats from a dense row to the next, words from an entry to the next
  std::uint32_t* indices = nullptr;        ///< of entries; null: rows are dense
  std::uint64_t entries = 0;               ///< room for so many
  std::uint64_t* ends = nullptr;           ///< of each sparse row, in entries
  std::uint64_t entries_before = 0;        ///< which they count too
  std::vector<bad_record>* bad = nullptr;  ///< null: a bad row is an error

  [[nodiscard]] std::span<float> row(std::size_t at) const noexcept { return {values + at * step, width}; }
  /// What becomes of row `at`, of this id, for which `error` is being handled: zeros.
  void refuse(std::size_t at, sample_id id, const data_error& error) const {
    if (bad == nullptr) throw;
    labels[at] = 0;
    if (indices == nullptr) std::ranges::fill(row(at), 0.0f);
    bad->push_back({id, error.where(), error.problem()});
  }
};

/// The records of a block, in order.
struct record_block {
  std::vector<float> labels;
  std::vector<std::byte> bytes;
  std::size_t width = 0;            ///< floats of a record; 0: they are sparse
  std::vector<std::uint64_t> ends;  ///< of each sparse record, in entries
  std::vector<bad_record> bad;      ///< by id; theirs are zeros

  /// The places of all of them, of so many entries if they are sparse.
  [[nodiscard]] row_places rows(std::uint64_t entries = 0) {
    if (width == 0) bytes.resize(std::max<std::uint64_t>(entries, 1) * sizeof(sparse_entry));
    auto* const floats = reinterpret_cast<float*>(bytes.data());
    if (width != 0) return {.labels = labels.data(), .width = width, .values = floats, .step = width, .bad = &bad};
    return {.labels = labels.data(),
            .values = floats + 1,
            .step = 2,
            .indices = reinterpret_cast<std::uint32_t*>(bytes.data()),
            .entries = entries,
            .ends = ends.data(),
            .bad = &bad};
  }
  /// Bytes of memory.
  [[nodiscard]] std::size_t size() const noexcept {
    return sizeof *this + bytes.size() + labels.size() * sizeof(float) + ends.size() * sizeof(std::uint64_t) +
           bad.size() * sizeof(bad_record);
  }
};

/// What blocked_records is made of.
struct block_index : source_facts {
  std::vector<std::uint64_t> firsts;          ///< the first record of each block, and how many there are
  std::uint64_t mean_bytes = 1;               ///< of a record
  bool keep_bad = false;                      ///< otherwise a bad record is an error, whatever the reader asks for
  std::shared_ptr<const mapped_file> file{};  ///< that the blocks are of; null: a query
  /// Makes the records of a block, of rows of floats, or sparse, with one label; called by several threads at once, not
  /// of the same block.
  std::function<void(std::size_t number, record_block& to)> make;
};

/// Rows of so many floats, with a label.
[[nodiscard]] inline record_schema dense_schema(std::uint64_t features) {
  return {record_form::fixed, {{"features", dtype::float32, {features}}}, 0, {"label"}};
}

/// A record_source of such blocks.
class blocked_records : public source_with_facts {
 public:
  /// Keeps up to so many bytes of blocks.
  blocked_records(block_index index, std::size_t cache_bytes);

  /// Records that are better read together: in block_window order, a block has so many.
  [[nodiscard]] std::uint64_t block_records() const noexcept;
  /// As any_record_source has them.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const {
    return state_->file ? state_->file->host_state() : std::nullopt;
  }
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const {
    return state_->file ? state_->file->host_state_now() : std::nullopt;
  }
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;

 private:
  struct state : block_index {
    state(block_index of, std::size_t cache_bytes) : block_index(std::move(of)), cache(cache_bytes) {}
    std::uint64_t record_bytes = schema.record_bytes();  // 0: sparse
    mutable lru_cache<record_block> cache;
  };
  struct found_record;
  /// The block that a record is in, and its place there.
  void find(sample_id id, found_record& found) const;

  std::shared_ptr<const state> state_;
};

}}}  // namespace muster::v0::detail
