#include "blocked_records.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {

blocked_records::blocked_records(block_index index, std::size_t cache_bytes)
    : state_(std::make_shared<const state>(std::move(index), cache_bytes)) {}

std::uint64_t blocked_records::block_records() const noexcept {
  constexpr std::uint64_t bytes = std::uint64_t{3} << 20;  // of which 16 are mixed: less than caches hold
  const std::uint64_t beside = sizeof(float) + (state_->record_bytes == 0 ? sizeof(std::uint64_t) : 0);
  return std::max<std::uint64_t>(bytes / (state_->index.mean_bytes + beside), 1);
}

std::size_t blocked_records::block_of(sample_id id) const noexcept {
  const auto& firsts = state_->index.firsts;
  return static_cast<std::size_t>(std::upper_bound(firsts.begin(), firsts.end(), id) - firsts.begin()) - 1;
}

std::shared_ptr<const record_block> blocked_records::block(std::size_t number) const {
  if (auto found = state_->cache.get(number)) return found;
  // A thread that wants the same one waits, and does not make it too.
  const std::lock_guard lock(state_->making[number % state_->making.size()]);
  if (auto found = state_->cache.get(number)) return found;
  auto made = std::make_shared<record_block>();
  const std::uint64_t records = state_->index.firsts[number + 1] - state_->index.firsts[number];
  made->labels.resize(records);
  made->width = state_->record_bytes / sizeof(float);
  made->bytes.resize(records * state_->record_bytes);
  if (state_->record_bytes == 0) made->ends.resize(records);
  state_->index.make(number, *made);
  state_->cache.put(number, made);
  return made;
}

void blocked_records::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
  if (state_->record_bytes != 0) return static_cast<void>(std::fill_n(out.begin(), ids.size(), state_->record_bytes));
  std::shared_ptr<const record_block> from;
  std::size_t number = 0;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (const std::size_t of = block_of(ids[k]); !from || of != number) from = block(number = of);
    const std::size_t at = ids[k] - state_->index.firsts[number];
    out[k] = from->ends[at] - (at == 0 ? 0 : from->ends[at - 1]);
  }
}

void blocked_records::read(std::span<const sample_id> ids, const record_rows& rows,
                           std::vector<bad_record>* bad) const {
  std::shared_ptr<const record_block> from;
  std::size_t number = 0;
  std::byte* to = rows.bytes.data();
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (const std::size_t of = block_of(ids[k]); !from || of != number) from = block(number = of);
    const std::size_t at = ids[k] - state_->index.firsts[number];
    const auto found = std::ranges::lower_bound(from->bad, ids[k], {}, &bad_record::id);
    if (found != from->bad.end() && found->id == ids[k]) {
      if (bad == nullptr || !state_->index.keep_bad) throw data_error(found->where, found->problem);
      bad->push_back(*found);
    }
    if (!rows.labels.empty()) rows.labels[k] = from->labels[at];
    if (rows.bytes.empty()) continue;
    const std::size_t end = from->ends.empty() ? (at + 1) * state_->record_bytes : from->ends[at];
    const std::size_t begin = !from->ends.empty() ? (at == 0 ? 0 : from->ends[at - 1]) : end - state_->record_bytes;
    if (end != begin) std::memcpy(to, from->bytes.data() + begin, end - begin);
    to += end - begin;
  }
}

}  // namespace muster::inline v0::detail
