// Records that are made in blocks, on demand. The blocks that were used last stay in a cache. Large text, tables of a
// database and Parquet files share this code. Private to muster's own sources.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/cache/lru_cache.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// The destination of parsed rows. Each pointer is to the data of the first row.
struct row_places {
  float* labels = nullptr;
  std::size_t width = 0;             ///< features of a row
  float* values = nullptr;           ///< values of dense rows, or of the entries of sparse rows
  std::size_t step = 0;              ///< floats from a dense row to the next, words from a sparse entry to the next
  std::uint32_t* indices = nullptr;  ///< indices of the entries; null: rows are dense
  std::uint64_t entries = 0;         ///< number of entries that fit
  std::uint64_t* ends = nullptr;     ///< each sparse row's end, in entries
  std::uint64_t entries_before = 0;  ///< number of entries in front of the first row, which `ends` includes
  std::vector<bad_record>* bad = nullptr;  ///< list of bad rows; null: a bad row is an error

  [[nodiscard]] std::span<float> row(std::size_t at) const noexcept { return {values + at * step, width}; }
  /// Handles the bad row at position `at` with this id while `error` is being handled: adds the row to `bad` and sets
  /// its values to zero. Rethrows `error` if `bad` is null.
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
  std::size_t width = 0;            ///< number of floats in a record; 0: records are sparse
  std::vector<std::uint64_t> ends;  ///< each record's end, in entries of a sparse record or in bytes
  std::vector<bad_record> bad;      ///< bad records in order of ids; their labels and values are zeros

  /// Returns the destination for this block's records. Sparse records have `entries` entries.
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
  /// Returns the number of bytes of memory.
  [[nodiscard]] std::size_t size() const noexcept {
    return sizeof *this + bytes.size() + labels.size() * sizeof(float) + ends.size() * sizeof(std::uint64_t) +
           bad.size() * sizeof(bad_record);
  }
};

/// The description from which blocked_records is constructed.
struct block_index : source_facts {
  std::vector<std::uint64_t> firsts;  ///< number of each block's first record, followed by the number of records
  std::uint64_t mean_bytes = 1;       ///< mean size of a record
  std::uint64_t order_block = 0;      ///< records of a block in block_window order; 0: as many as have 3 MiB
  bool keep_bad = false;              ///< false: a bad record is an error, even if the reader keeps bad records
  std::vector<std::shared_ptr<const mapped_file>> files{};  ///< files with the blocks; empty: the rows are from a query
  /// Makes the records of a block: fixed records, sparse rows or bytes, with one label each. Several threads call this
  /// function at the same time, but never for the same block.
  std::function<void(std::size_t number, record_block& block)> make;
};

/// Returns the schema of rows with `features` floats and a label.
[[nodiscard]] inline record_schema dense_schema(std::uint64_t features) {
  return {record_form::fixed, {{"features", dtype::float32, {features}}}, 0, {"label"}};
}

/// A record_source whose records are made in blocks.
class blocked_records : public source_with_facts {
 public:
  /// Makes a source whose cache holds at most `cache_bytes` bytes of blocks.
  blocked_records(block_index index, std::size_t cache_bytes);

  /// Returns the number of neighbouring records that are read efficiently together: the size of a block in block_window
  /// order.
  [[nodiscard]] std::uint64_t block_records() const noexcept;
  /// Returns the state of the files as defined by any_record_source.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const {
    if (state_->files.empty()) return std::nullopt;
    return states_of(state_->files, [](const auto& file) { return file->host_state(); });
  }
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const {
    if (state_->files.empty()) return std::nullopt;
    return states_of(state_->files, [](const auto& file) { return file->host_state_now(); });
  }
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;

 private:
  struct state : block_index {
    state(block_index index, std::size_t cache_bytes) : block_index(std::move(index)), cache(cache_bytes) {}
    std::uint64_t record_bytes = schema.record_bytes();  // size of a record; 0: sparse, or bytes
    std::uint64_t entry_bytes = schema.form == record_form::bytes ? 1 : sizeof(sparse_entry);
    mutable lru_cache<record_block> cache;
  };
  class block_finder;

  std::shared_ptr<const state> state_;
};

inline blocked_records::blocked_records(block_index index, std::size_t cache_bytes) {
  index.size = index.firsts.back();
  state_ = std::make_shared<const state>(std::move(index), cache_bytes);
  facts_ = state_.get();
}

inline std::uint64_t blocked_records::block_records() const noexcept {
  // block_window order mixes 16 such blocks, which fit into the cache.
  if (state_->order_block != 0) return state_->order_block;
  constexpr std::uint64_t bytes = std::uint64_t{3} << 20;
  const std::uint64_t label_bytes = sizeof(float) + (state_->record_bytes == 0 ? sizeof(std::uint64_t) : 0);
  return std::max<std::uint64_t>(bytes / (state_->mean_bytes + label_bytes), 1);
}

// Finds the blocks of the records of a read. Keeps the last blocks that it found, each at its number modulo the number
// of entries, so that most records need no lock.
class blocked_records::block_finder {
 public:
  /// The position of a record. Valid until `forget_replaced`.
  struct position {
    const record_block* block = nullptr;
    std::size_t index_in_block = 0;
    std::span<const std::byte> bytes{};
  };

  explicit block_finder(const state& source) noexcept : source_(source) {}

  /// Finds a record, and makes its block if the cache has no such block.
  [[nodiscard]] position find(sample_id id) {
    const auto& firsts = source_.firsts;
    const auto number = static_cast<std::size_t>(std::ranges::upper_bound(firsts, id) - firsts.begin()) - 1;
    entry& used = entries_[number % entries_.size()];
    if (!used.block || number != used.number) replace(used, number);
    const record_block& block = *used.block;
    const std::size_t index = id - firsts[number];
    if (source_.record_bytes != 0)
      return {&block, index, std::span(block.bytes).subspan(index * source_.record_bytes, source_.record_bytes)};
    const std::uint64_t begin = index == 0 ? 0 : block.ends[index - 1];
    return {
        &block, index,
        std::span(block.bytes).subspan(begin * source_.entry_bytes, (block.ends[index] - begin) * source_.entry_bytes)};
  }
  /// Returns true if a block has been replaced, which stays in memory until `forget_replaced`.
  [[nodiscard]] bool has_replaced() const noexcept { return !replaced_.empty(); }
  void forget_replaced() noexcept { replaced_.clear(); }

 private:
  struct entry {
    std::shared_ptr<const record_block> block;
    std::size_t number = 0;
  };

  void replace(entry& used, std::size_t number) {
    if (used.block) replaced_.push_back(std::move(used.block));
    used.number = number;
    used.block = source_.cache.get(number, [&] {
      auto made = std::make_shared<record_block>();
      const std::uint64_t records = source_.firsts[number + 1] - source_.firsts[number];
      made->labels.resize(records);
      made->width = source_.record_bytes / sizeof(float);
      made->bytes.resize(records * source_.record_bytes);
      if (source_.record_bytes == 0) made->ends.resize(records);
      source_.make(number, *made);
      return made;
    });
  }

  const state& source_;
  std::array<entry, 16> entries_;  // as many as the blocks of a window
  std::vector<std::shared_ptr<const record_block>> replaced_;
};

inline void blocked_records::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
  if (state_->record_bytes != 0) return static_cast<void>(std::fill_n(out.begin(), ids.size(), state_->record_bytes));
  block_finder blocks(*state_);
  for (std::size_t k = 0; k < ids.size(); ++k) {
    out[k] = blocks.find(ids[k]).bytes.size();
    blocks.forget_replaced();
  }
}

// Finds several records before it copies them, so that the processor fetches them together.
inline void blocked_records::read(std::span<const sample_id> ids, const record_rows& rows,
                                  std::vector<bad_record>* bad) const {
  constexpr std::size_t at_once = 32;
  block_finder blocks(*state_);
  std::byte* output = rows.bytes.data();
  for (std::size_t first = 0, found_count = 0; first < ids.size(); first += found_count) {
    auto part = ids.subspan(first, std::min(at_once, ids.size() - first));
    std::array<block_finder::position, at_once> found;
    found_count = 0;
    for (; found_count < part.size() && !blocks.has_replaced(); ++found_count) {
      const std::size_t k = found_count;
      found[k] = blocks.find(part[k]);
      if (!rows.bytes.empty() && k > 0 && part[k] != part[k - 1] + 1) fetch_ahead(found[k].bytes);
    }
    part = part.first(found_count);
    for (std::size_t k = 0; k < part.size(); ++k) {
      const record_block& block = *found[k].block;
      const auto bad_position = std::ranges::lower_bound(block.bad, part[k], {}, &bad_record::id);
      if (bad_position != block.bad.end() && bad_position->id == part[k]) {
        if (bad == nullptr || !state_->keep_bad) throw data_error(bad_position->location, bad_position->problem);
        bad->push_back(*bad_position);
      }
      if (!rows.labels.empty()) rows.labels[first + k] = block.labels[found[k].index_in_block];
      if (!rows.bytes.empty()) output = std::ranges::copy(found[k].bytes, output).out;
    }
    blocks.forget_replaced();
  }
}

}}}}  // namespace muster::v0::data::detail
