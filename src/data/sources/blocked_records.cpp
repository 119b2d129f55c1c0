#include "blocked_records.hpp"

#include <utility>

namespace muster { inline namespace v0 { namespace detail {

blocked_records::blocked_records(block_index index, std::size_t cache_bytes) {
  index.size = index.firsts.back();
  state_ = std::make_shared<const state>(std::move(index), cache_bytes);
  facts_ = state_.get();
}

std::uint64_t blocked_records::block_records() const noexcept {
  // block_window order mixes 16 such blocks, which fit into the cache.
  constexpr std::uint64_t bytes = std::uint64_t{3} << 20;
  const std::uint64_t label_bytes = sizeof(float) + (state_->record_bytes == 0 ? sizeof(std::uint64_t) : 0);
  return std::max<std::uint64_t>(bytes / (state_->mean_bytes + label_bytes), 1);
}

// The record that was found last, and its block. The next record is often in the same block.
struct blocked_records::found_record {
  std::shared_ptr<const record_block> block;
  std::size_t block_number = 0;
  std::size_t index_in_block = 0;
  std::size_t begin = 0;  // byte offset in the block
  std::size_t end = 0;
};

void blocked_records::find(sample_id id, found_record& found) const {
  const auto& firsts = state_->firsts;
  const auto number = static_cast<std::size_t>(std::ranges::upper_bound(firsts, id) - firsts.begin()) - 1;
  if (!found.block || number != found.block_number) {
    found.block_number = number;
    found.block = state_->cache.get(number, [&] {
      auto block = std::make_shared<record_block>();
      const std::uint64_t records = firsts[number + 1] - firsts[number];
      block->labels.resize(records);
      block->width = state_->record_bytes / sizeof(float);
      block->bytes.resize(records * state_->record_bytes);
      if (state_->record_bytes == 0) block->ends.resize(records);
      state_->make(number, *block);
      return block;
    });
  }
  found.index_in_block = id - firsts[number];
  if (state_->record_bytes != 0) {
    found.begin = found.index_in_block * state_->record_bytes;
    found.end = found.begin + state_->record_bytes;
  } else {
    found.begin = (found.index_in_block == 0 ? 0 : found.block->ends[found.index_in_block - 1]) * sizeof(sparse_entry);
    found.end = found.block->ends[found.index_in_block] * sizeof(sparse_entry);
  }
}

void blocked_records::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
  if (state_->record_bytes != 0) return static_cast<void>(std::fill_n(out.begin(), ids.size(), state_->record_bytes));
  found_record found;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    find(ids[k], found);
    out[k] = found.end - found.begin;
  }
}

void blocked_records::read(std::span<const sample_id> ids, const record_rows& rows,
                           std::vector<bad_record>* bad) const {
  found_record found;
  std::byte* output = rows.bytes.data();
  for (std::size_t k = 0; k < ids.size(); ++k) {
    find(ids[k], found);
    const auto bad_position = std::ranges::lower_bound(found.block->bad, ids[k], {}, &bad_record::id);
    if (bad_position != found.block->bad.end() && bad_position->id == ids[k]) {
      if (bad == nullptr || !state_->keep_bad) throw data_error(bad_position->location, bad_position->problem);
      bad->push_back(*bad_position);
    }
    if (!rows.labels.empty()) rows.labels[k] = found.block->labels[found.index_in_block];
    if (rows.bytes.empty()) continue;
    output = std::copy(found.block->bytes.data() + found.begin, found.block->bytes.data() + found.end, output);
  }
}

}}}  // namespace muster::v0::detail
