#include "pull_cache.hpp"

#include <algorithm>
#include <utility>

namespace muster::inline v0::ps::detail {

bool pull_cache::read(range_id range, std::size_t offset, std::span<float> to, std::uint64_t now,
                      std::uint64_t& version) const {
  if (!is_on()) return false;
  const auto& kept = kept_[range];
  if (offset < kept.begin || offset + to.size() > kept.end || !is_fresh(kept.of_slice, now)) return false;
  std::copy_n(kept.values.begin() + static_cast<std::ptrdiff_t>(offset - kept.begin), to.size(), to.begin());
  version = kept.of_slice.version;
  return true;
}

void pull_cache::keep(range_id range, std::size_t offset, std::span<const float> values, std::uint64_t asked,
                      std::uint64_t version) {
  if (!is_on()) return;
  auto& kept = kept_[range];
  if (asked < kept.of_slice.asked) return;  // an answer that was overtaken
  kept.begin = offset;
  kept.end = offset + values.size();
  kept.of_slice = {asked, version};
  kept.values.assign(values.begin(), values.end());
}

std::span<const float> pull_cache::read_row(range_id range, std::uint64_t key, std::uint64_t now,
                                            std::uint64_t& version) const {
  if (!is_on()) return {};
  const auto& kept = kept_[range];
  const auto row = kept.rows.find(key);
  if (row == row_index::none || !is_fresh(kept.ages[row], now)) return {};
  version = kept.ages[row].version;
  const std::size_t width = layout_.table_of(range).width;
  return std::span(kept.values).subspan(row * width, width);
}

void pull_cache::keep_row(range_id range, std::uint64_t key, std::span<const float> row, std::uint64_t asked,
                          std::uint64_t version) {
  if (!is_on()) return;
  auto& kept = kept_[range];
  if (kept.ages.size() >= kept.sweep_at) sweep(kept, row.size(), asked);
  const auto at = kept.rows.find_or_add(key);
  if (at == kept.ages.size()) {
    kept.ages.emplace_back();
    kept.values.resize(kept.values.size() + row.size());
  }
  if (asked < kept.ages[at].asked) return;
  kept.ages[at] = {asked, version};
  std::copy(row.begin(), row.end(), kept.values.begin() + static_cast<std::ptrdiff_t>(at * row.size()));
}

// Only what may be read again stays.
void pull_cache::sweep(kept_range& kept, std::size_t width, std::uint64_t now) {
  kept_range left;
  for (std::size_t row = 0; row < kept.ages.size(); ++row) {
    if (!is_fresh(kept.ages[row], now)) continue;
    (void)left.rows.find_or_add(kept.rows.keys()[row]);
    left.ages.push_back(kept.ages[row]);
    const auto from = kept.values.begin() + static_cast<std::ptrdiff_t>(row * width);
    left.values.insert(left.values.end(), from, from + static_cast<std::ptrdiff_t>(width));
  }
  left.sweep_at = std::max(left.sweep_at, 2 * left.ages.size());
  kept = std::move(left);
}

void pull_cache::forget(range_id range) {
  if (is_on()) kept_[range] = {};
}

}  // namespace muster::inline v0::ps::detail
