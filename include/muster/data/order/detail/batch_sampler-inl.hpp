#pragma once

#include <muster/data/order/batch_sampler.hpp>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

MUSTER_INLINE bool sampler::is_order_of(const cursor& position) const noexcept {
  return epoch_start_ == batch_sampler::start_of_epoch(position);
}

MUSTER_INLINE void sampler::assign(const cursor& position) {
  if (is_order_of(position)) return;
  const cursor start = batch_sampler::start_of_epoch(position);
  switch (start.order) {
    case sample_order::sequential:
      break;
    case sample_order::shuffled:
      epoch_start_.size = 0;  // stays 0 if assign() throws because there are too many samples
      exact_.assign(start.seed, start.epoch, start.size);
      break;
    case sample_order::feistel:
      feistel_ = feistel_permutation(start.seed, start.epoch, start.size);
      break;
    case sample_order::block_window:
      blocks_ = block_window_permutation(start.seed, start.epoch, start.size, start.block, start.window);
      break;
    default:
      throw configuration_error(
          "sample order " + std::to_string(static_cast<std::uint32_t>(start.order)) +
          " is unknown (this version supports 0 to 3); the cursor is damaged or was saved by another version");
  }
  epoch_start_ = start;
}

MUSTER_INLINE void sampler::fill(std::uint64_t first, std::span<sample_id> ids) const noexcept {
  switch (epoch_start_.order) {
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

MUSTER_INLINE data::cursor batch_sampler::start_of_epoch(data::cursor where) noexcept {
  where.position = where.joined = where.joined_last = where.joined_used = 0;
  return where;
}

MUSTER_INLINE batch_sampler::segment batch_sampler::segment_of(const data::cursor& where) noexcept {
  const std::uint64_t remaining = where.joined - where.joined_used;
  segment found{0, where.size - where.joined, 0, where.position - where.joined_used};
  if (remaining != 0) found = {where.size - where.joined_last, where.joined_last, 0, where.joined_last - remaining};
  found.end = where.drop_last != 0 ? found.size - found.size % where.batch : found.size;
  return found;
}

MUSTER_INLINE std::uint64_t batch_sampler::batch_size(const data::cursor& where, int world) noexcept {
  const segment in = segment_of(where);
  const std::uint64_t remaining = in.end - in.position;
  if (where.per_rank == 0 || world < 1) return std::min(where.batch, remaining);
  const auto ranks = static_cast<std::uint64_t>(world);
  return remaining / ranks < where.batch ? remaining : where.batch * ranks;
}

MUSTER_INLINE data::cursor batch_sampler::advanced(data::cursor where, std::uint64_t samples) noexcept {
  for (;;) {
    const segment in = segment_of(where);
    const std::uint64_t count = std::min(samples, in.end - in.position);
    samples -= count;
    where.position += count;
    if (where.joined_used < where.joined) {
      const std::uint64_t left_out = in.position + count == in.end ? in.size - in.end : 0;
      where.position += left_out;
      where.joined_used += count + left_out;
    } else if (samples != 0) {
      where = start_of_epoch(where);
      ++where.epoch;
    }
    if (samples == 0) return where;
  }
}

MUSTER_INLINE data::cursor batch_sampler::after(const data::cursor& position, std::uint64_t samples) noexcept {
  data::cursor next = advanced(position, samples);
  if (batch_size(next) != 0) return next;
  next = start_of_epoch(next);
  ++next.epoch;
  return next;
}

MUSTER_INLINE bool batch_sampler::may_grow() const noexcept {
  const std::uint64_t count = batch_size(cursor_, world_);
  if (after(cursor_, count).epoch != cursor_.epoch) return true;
  if (every_ == 0 || cursor_.joined_used < cursor_.joined) return false;
  const std::uint64_t period = every_ * step_size(), begin = segment_of(cursor_).position;
  return begin / period != (begin + count) / period;
}

MUSTER_INLINE std::uint64_t batch_sampler::step_size() const noexcept {
  return cursor_.per_rank != 0 ? cursor_.batch * static_cast<std::uint64_t>(world_) : cursor_.batch;
}

MUSTER_INLINE std::uint64_t batch_sampler::steps(std::uint64_t samples) const noexcept {
  const std::uint64_t samples_per_step = step_size();
  return samples / samples_per_step + (samples % samples_per_step != 0 ? 1 : 0);
}

MUSTER_INLINE std::uint64_t batch_sampler::steps_per_epoch() const noexcept {
  data::cursor began = cursor_;
  began.joined_used = began.joined;
  return steps(segment_of(began).end + cursor_.joined);
}

// Returns true if commits can lead to this cursor.
MUSTER_INLINE bool batch_sampler::is_between_batches(const data::cursor& place) noexcept {
  const auto is_place = [&](const segment& in) {
    return in.position <= in.end && (in.position % place.batch == 0 || in.position == in.end);
  };
  data::cursor began = place;
  began.joined_used = began.joined;
  began.position += place.joined - place.joined_used;
  return place.joined <= place.size && place.joined_last <= place.joined &&
         place.joined_used <= std::min(place.joined, place.position) &&
         place.joined - place.joined_used <= place.joined_last && is_place(segment_of(place)) &&
         is_place(segment_of(began));
}

MUSTER_INLINE void batch_sampler::open(const data::cursor& start) {
  const auto compare = [&](const data::cursor& expected) {
    if (const std::string difference = detail::difference(start, expected); !difference.empty()) {
      throw configuration_error("cannot resume from this cursor (" + difference +
                                "); open it with the data and settings with which it was saved");
    }
  };
  data::cursor expected = cursor_;
  const bool another_version = open_version_ && start.size != cursor_.size;
  if (another_version) {
    expected.size = start.size;
    expected.dataset = start.dataset;
  }
  compare(expected);
  if (!is_between_batches(start)) {
    throw configuration_error("cannot resume from this cursor (position " + std::to_string(start.position) +
                              " is not between two batches of " + std::to_string(start.batch) + " of " +
                              std::to_string(start.size) + " samples); the cursor is damaged or was written by hand");
  }
  if (another_version) {
    expected.dataset = open_version_(start.size);
    if (expected.dataset != start.dataset) {
      (void)open_version_(cursor_.size);
      compare(expected);
    }
  }
  cursor_ = start;
}

MUSTER_INLINE void batch_sampler::commit() {
  const std::uint64_t count = batch_size(cursor_, world_);
  if (count == 0) {
    throw configuration_error("there is no batch to commit (epoch " + std::to_string(cursor_.epoch) +
                              " is over); call next_epoch()");
  }
  const bool grows = every_ != 0 && selected_size_ > cursor_.size && may_grow();
  const std::uint64_t digest =
      grows ? open_version_(selected_size_) : 0;  // if open_version_() throws, nothing has changed
  cursor_ = advanced(cursor_, count);
  if (!grows) return;
  cursor_.joined_last = selected_size_ - cursor_.size;
  cursor_.joined += cursor_.joined_last;
  cursor_.size = selected_size_;
  cursor_.dataset = digest;
  cursor_ = advanced(cursor_, 0);  // past remaining samples that do not fill a batch
}

MUSTER_INLINE void batch_sampler::ids(const data::cursor& where, std::uint64_t first, std::span<sample_id> ids) {
  if (ids.empty()) return;
  if (mixture_) return ids_of_mixture(where, where.position + first, ids);
  const segment in = segment_of(where);
  data::cursor own = start_of_epoch(where);
  own.dataset = 0;  // joined samples do not change the order
  own.size = in.size;
  if (in.begin != 0 && where.order != sample_order::sequential) own.seed = mix(where.seed + in.begin);
  const bool use_second = where.epoch != cursor_.epoch || in.begin != 0;
  if (!use_second && orders_[1].is_order_of(own)) std::swap(orders_[0], orders_[1]);
  sampler& order = orders_[use_second ? 1 : 0];
  order.assign(own);
  order.fill(in.position + first, ids);
  for (sample_id& id : ids) id += in.begin;
}

// The requested positions of a part are adjacent in the part's own sequence of epochs. They are looked up together, and
// then written to their positions in the mixture.
MUSTER_INLINE void batch_sampler::ids_of_mixture(const data::cursor& position, std::uint64_t first,
                                                 std::span<sample_id> ids) {
  places_.resize(ids.size());
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto [part, before] = mixture_->place_of(first + k);
    places_[k] = {part, before, k};
  }
  std::ranges::sort(places_, {}, [](const place_of_part& place) { return std::pair(place.part, place.earlier); });
  std::size_t count = 0;
  for (std::size_t k = 0; k < places_.size(); k += count) {
    const auto part = places_[k].part;
    const std::uint64_t size = mixture_->size(part);
    const std::uint64_t drawn = position.epoch * mixture_->in_epoch(part) + places_[k].earlier;
    data::cursor own = position;
    own.epoch = drawn / size;
    own.size = size;
    own.seed = position.order == sample_order::sequential ? 0 : mix(position.seed + part);
    const std::uint64_t remaining = size - drawn % size;  // remaining samples in the part's epoch
    for (count = 1; k + count < places_.size() && places_[k + count].part == part && count < remaining;) ++count;
    ids_of_part_.resize(count);
    sampler& order = orders_of_parts_[part][own.epoch % 2];
    order.assign(own);
    order.fill(drawn % size, ids_of_part_);
    for (std::size_t j = 0; j < count; ++j) ids[places_[k + j].index] = mixture_->first_record(part) + ids_of_part_[j];
  }
}

MUSTER_INLINE void batch_sampler::assign_samples_to(std::vector<held_shards> held) {
  held_by_rank_ = std::move(held);
  holders_.assign(held_by_rank_.empty() ? 0 : mixture_->parts(), {});
  for (std::size_t rank = 0; rank < held_by_rank_.size(); ++rank) {
    for (std::size_t shard = 0; shard < holders_.size(); ++shard)
      if (held_by_rank_[rank].available[shard] != 0) holders_[shard].push_back(rank);
  }
}

MUSTER_INLINE void batch_sampler::ids_of(const data::cursor& position, batch_shard shard, std::vector<sample_id>& ids) {
  const std::uint64_t count = batch_size(position, shard.world);
  const index_range own = part_of(count, shard);
  if (held_by_rank_.empty()) {
    ids.resize(own.size());
    return this->ids(position, own.first, ids);
  }
  if (held_by_rank_.size() != static_cast<std::size_t>(shard.world)) {
    throw configuration_error("the ranks have agreed on the shards of " + std::to_string(held_by_rank_.size()) +
                              " ranks, but there are " + std::to_string(shard.world) +
                              " ranks; agree again when ranks join or leave");
  }
  if (shard.virtual_shards > 0) {
    throw configuration_error(
        "samples that are assigned to the ranks that hold them cannot be divided into virtual shards (virtual shards "
        "are the same for any ranks); give every rank all data, or use no virtual shards");
  }
  ids.resize(count);
  this->ids(position, 0, ids);
  assign_ranks(ids, shard.weights);
  std::size_t own_count = 0;
  for (std::size_t k = 0; k < count; ++k)
    if (assigned_rank_[k] == static_cast<std::size_t>(shard.rank)) ids[own_count++] = ids[k];
  ids.resize(own_count);
}

// Assigns each sample to the rank with the lowest load for its weight among the ranks that hold the sample. Later
// assignments may make another choice better, so the pass is repeated until nothing changes, at most 16 times. All
// numbers are integers, so all ranks compute the same result.
MUSTER_INLINE void batch_sampler::assign_ranks(std::span<const sample_id> ids, const rank_weights& weights) {
  constexpr int most_rounds = 16;
  constexpr std::size_t no_rank = ~std::size_t{0};
  assigned_rank_.assign(ids.size(), no_rank);
  loads_.assign(held_by_rank_.size(), 0);
  const auto scaled_load = [&](std::size_t rank, std::size_t weight_of) {  // load after adding one sample
    __extension__ using wide = unsigned __int128;
    return wide{loads_[rank] + 1} * held_by_rank_[weight_of].weight * (weights ? (*weights)[weight_of] : 1);
  };
  const auto is_better = [&](std::size_t candidate, std::size_t current) {
    return scaled_load(candidate, current) < scaled_load(current, candidate);
  };
  bool changed = true;
  for (int round = 0; changed && round < most_rounds; ++round) {
    changed = false;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const auto& holders = holders_[mixture_->part_of(ids[k])];
      std::size_t best = assigned_rank_[k];
      if (best != no_rank) --loads_[best];
      for (const std::size_t rank : holders)
        if (best == no_rank || is_better(rank, best)) best = rank;
      ++loads_[best];
      changed = std::exchange(assigned_rank_[k], best) != best || changed;
    }
  }
}

}}}}  // namespace muster::v0::data::detail

namespace muster { inline namespace v0 { namespace data {

namespace detail {

// Returns the properties of a sequence of epochs by name. The properties of the data are first.
MUSTER_INLINE std::vector<std::pair<std::string, std::string>> properties_of(const cursor& position) {
  return {{"number of samples", std::to_string(position.size)},
          {"dataset's digest", muster::detail::hex(position.dataset)},
          {"version", std::to_string(position.version)},
          {"order", std::string(to_string(position.order))},
          {"seed", std::to_string(position.seed)},
          {"block", std::to_string(position.block)},
          {"window", std::to_string(position.window)},
          {"drop_last", std::to_string(position.drop_last)},
          {"batch per rank", std::to_string(position.per_rank)},
          {position.per_rank != 0 ? "batch" : "global batch", std::to_string(position.batch)}};
}

}  // namespace detail

MUSTER_INLINE sampler_handle::sampler_handle(detail::batch_sampler& plan) noexcept
    : data::cursor(plan.cursor()), plan_(&plan) {}
MUSTER_INLINE std::vector<std::pair<std::string, std::string>> sampler_handle::properties() const {
  auto all = detail::properties_of(current());
  if (!plan_->reads_one_source()) all.erase(all.begin(), all.begin() + 2);
  if (!plan_->classes().empty()) all.emplace_back("names of classes", muster::detail::joined(plan_->classes(), "/"));
  return all;
}
MUSTER_INLINE const cursor& sampler_handle::current() const noexcept { return plan_->cursor(); }
MUSTER_INLINE bool sampler_handle::epoch_is_over() const noexcept {
  return detail::batch_sampler::batch_size(current()) == 0;
}
MUSTER_INLINE void sampler_handle::open(const cursor& start) const { plan_->open(start); }
MUSTER_INLINE void sampler_handle::commit() const { plan_->commit(); }
MUSTER_INLINE void sampler_handle::next_epoch() const { plan_->next_epoch(); }

MUSTER_INLINE std::string_view to_string(sample_order order) noexcept {
  constexpr std::string_view names[] = {"sequential", "shuffled", "feistel", "block_window"};
  const auto index = static_cast<std::size_t>(order);
  return index < std::size(names) ? names[index] : std::string_view("unknown");
}

MUSTER_INLINE std::string detail::difference(const cursor& saved, const cursor& expected) {
  std::string text;
  const auto theirs = detail::properties_of(saved), ours = detail::properties_of(expected);
  for (std::size_t k = 0; k < ours.size(); ++k) {
    if (theirs[k].second == ours[k].second) continue;
    text.append(text.empty() ? "" : ", ").append("the ").append(ours[k].first);
    text.append(" is ").append(theirs[k].second).append(" there and ").append(ours[k].second).append(" here");
  }
  return text;
}

}}}  // namespace muster::v0::data
