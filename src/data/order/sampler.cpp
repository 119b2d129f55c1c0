#include "sampler.hpp"

#include <numeric>
#include <string>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {

namespace {

// A cursor that stands for its whole epoch.
cursor start_of_epoch(cursor where) noexcept {
  where.position = 0;
  return where;
}

}  // namespace

bool sampler::is_of(const cursor& where) const noexcept { return of_ == start_of_epoch(where); }

void sampler::assign(const cursor& where) {
  if (is_of(where)) return;
  const cursor wanted = start_of_epoch(where);
  switch (wanted.order) {
    case sample_order::sequential:
      break;
    case sample_order::shuffled:
      of_.size = 0;  // should there be too many
      exact_.assign(wanted.seed, wanted.epoch, wanted.size);
      break;
    case sample_order::feistel:
      feistel_ = feistel_permutation(wanted.seed, wanted.epoch, wanted.size);
      break;
    case sample_order::block_window:
      blocks_ = block_window_permutation(wanted.seed, wanted.epoch, wanted.size, wanted.block, wanted.window);
      break;
    default:
      throw configuration_error("there is no order " + std::to_string(static_cast<std::uint32_t>(wanted.order)) +
                                " of samples (this version knows 0 to 3); the cursor is of another version or damaged");
  }
  of_ = wanted;
}

void sampler::fill(std::uint64_t first, std::span<sample_id> ids) const noexcept {
  switch (of_.order) {
    case sample_order::sequential:
      std::iota(ids.begin(), ids.end(), first);
      break;
    case sample_order::shuffled:
      for (sample_id& id : ids) id = exact_[first++];
      break;
    case sample_order::feistel:
      feistel_.fill(first, ids);
      break;
    case sample_order::block_window:
      blocks_.fill(first, ids);
      break;
  }
}

}  // namespace muster::inline v0::detail
