#include "row_index.hpp"

#include <algorithm>

#include <muster/core/hash.hpp>

namespace muster::inline v0::ps::detail {

std::size_t row_index::slot_of(std::uint64_t key) const noexcept {
  const std::size_t last = slots_.size() - 1;
  std::size_t at = static_cast<std::size_t>(mix(key)) & last;
  while (slots_[at] != none && keys_[slots_[at]] != key) at = (at + 1) & last;
  return at;
}

std::uint32_t row_index::find(std::uint64_t key) const noexcept { return slots_.empty() ? none : slots_[slot_of(key)]; }

std::uint32_t row_index::find_or_add(std::uint64_t key) {
  if (2 * (keys_.size() + 1) > slots_.size()) grow();
  auto& slot = slots_[slot_of(key)];
  if (slot == none) {
    slot = static_cast<std::uint32_t>(keys_.size());
    keys_.push_back(key);
  }
  return slot;
}

void row_index::grow() {
  slots_.assign(std::max<std::size_t>(16, 2 * slots_.size()), none);
  for (std::uint32_t row = 0; row < keys_.size(); ++row) slots_[slot_of(keys_[row])] = row;
}

}  // namespace muster::inline v0::ps::detail
