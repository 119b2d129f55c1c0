#include "batch_sampler.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include "../../core/text.hpp"

namespace muster { inline namespace v0 { namespace detail {

bool sampler::is_of(const cursor& where) const noexcept { return of_ == batch_sampler::start_of_epoch(where); }

void sampler::assign(const cursor& where) {
  if (is_of(where)) return;
  const cursor wanted = batch_sampler::start_of_epoch(where);
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

muster::cursor batch_sampler::start_of_epoch(muster::cursor where) noexcept {
  where.position = where.joined = where.joined_last = where.joined_used = 0;
  return where;
}

batch_sampler::segment batch_sampler::segment_of(const muster::cursor& where) noexcept {
  const std::uint64_t left = where.joined - where.joined_used;
  segment found{0, where.size - where.joined, 0, where.position - where.joined_used};
  if (left != 0) found = {where.size - where.joined_last, where.joined_last, 0, where.joined_last - left};
  found.end = where.drop_last != 0 ? found.size - found.size % where.batch : found.size;
  return found;
}

std::uint64_t batch_sampler::batch_size(const muster::cursor& where, int world) noexcept {
  const segment in = segment_of(where);
  const std::uint64_t left = in.end - in.position;
  if (where.per_rank == 0 || world < 1) return std::min(where.batch, left);
  const auto ranks = static_cast<std::uint64_t>(world);
  return left / ranks < where.batch ? left : where.batch * ranks;
}

muster::cursor batch_sampler::moved(muster::cursor where, std::uint64_t samples) noexcept {
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

muster::cursor batch_sampler::after(const muster::cursor& where, std::uint64_t samples) noexcept {
  muster::cursor next = moved(where, samples);
  if (batch_size(next) != 0) return next;
  next = start_of_epoch(next);
  ++next.epoch;
  return next;
}

bool batch_sampler::may_grow() const noexcept {
  const std::uint64_t count = batch_size(at_, world_);
  if (after(at_, count).epoch != at_.epoch) return true;
  if (every_ == 0 || at_.joined_used < at_.joined) return false;
  const std::uint64_t period = every_ * step_size(), begin = segment_of(at_).position;
  return begin / period != (begin + count) / period;
}

std::uint64_t batch_sampler::step_size() const noexcept {
  return at_.per_rank != 0 ? at_.batch * static_cast<std::uint64_t>(world_) : at_.batch;
}

std::uint64_t batch_sampler::steps(std::uint64_t samples) const noexcept {
  const std::uint64_t one = step_size();
  return samples / one + (samples % one != 0 ? 1 : 0);
}

std::uint64_t batch_sampler::steps_per_epoch() const noexcept {
  muster::cursor began = at_;
  began.joined_used = began.joined;
  return steps(segment_of(began).end + at_.joined);
}

// Whether a cursor is one that commits lead to.
bool batch_sampler::is_between_batches(const muster::cursor& at) noexcept {
  const auto is_place = [&](const segment& in) {
    return in.position <= in.end && (in.position % at.batch == 0 || in.position == in.end);
  };
  muster::cursor began = at;
  began.joined_used = began.joined;
  began.position += at.joined - at.joined_used;
  return at.joined <= at.size && at.joined_last <= at.joined && at.joined_used <= std::min(at.joined, at.position) &&
         at.joined - at.joined_used <= at.joined_last && is_place(segment_of(at)) && is_place(segment_of(began));
}

void batch_sampler::open(const muster::cursor& there) {
  const auto compare = [&](const muster::cursor& here) {
    if (const std::string difference = detail::difference(there, here); !difference.empty()) {
      throw configuration_error("cannot go on from this cursor (" + difference +
                                "); open it with the data and settings it was made with");
    }
  };
  muster::cursor here = at_;
  const bool another_version = open_version_ && there.size != at_.size;
  if (another_version) {
    here.size = there.size;
    here.dataset = there.dataset;
  }
  compare(here);
  if (!is_between_batches(there)) {
    throw configuration_error("cannot go on from this cursor (position " + std::to_string(there.position) +
                              " is not between two batches of " + std::to_string(there.batch) + " of " +
                              std::to_string(there.size) + " samples); it was damaged or made by hand");
  }
  if (another_version) {
    here.dataset = open_version_(there.size);
    if (here.dataset != there.dataset) {
      (void)open_version_(at_.size);
      compare(here);
    }
  }
  at_ = there;
}

void batch_sampler::commit() {
  const std::uint64_t count = batch_size(at_, world_);
  if (count == 0) {
    throw configuration_error("there is no batch to commit (epoch " + std::to_string(at_.epoch) +
                              " is over); call next_epoch()");
  }
  const bool grows = every_ != 0 && grown_ > at_.size && may_grow();
  const std::uint64_t digest = grows ? open_version_(grown_) : 0;  // may throw, and then nothing has happened
  at_ = moved(at_, count);
  if (!grows) return;
  at_.joined_last = grown_ - at_.size;
  at_.joined += at_.joined_last;
  at_.size = grown_;
  at_.dataset = digest;
  at_ = moved(at_, 0);  // past what is not even a batch
}

void batch_sampler::ids(const muster::cursor& where, std::uint64_t first, std::span<sample_id> ids) {
  if (ids.empty()) return;
  if (mixture_) return ids_of_mixture(where, where.position + first, ids);
  const segment in = segment_of(where);
  muster::cursor own = start_of_epoch(where);
  own.dataset = 0;  // the order stays when samples join
  own.size = in.size;
  if (in.begin != 0 && where.order != sample_order::sequential) own.seed = mix(where.seed + in.begin);
  const bool other = where.epoch != at_.epoch || in.begin != 0;
  if (!other && orders_[1].is_of(own)) std::swap(orders_[0], orders_[1]);
  sampler& order = orders_[other ? 1 : 0];
  order.assign(own);
  order.fill(in.position + first, ids);
  for (sample_id& id : ids) id += in.begin;
}

// The positions of a part that are asked for are neighbours in its own row of epochs: they are found together, and then
// put where the mixture has them.
void batch_sampler::ids_of_mixture(const muster::cursor& where, std::uint64_t first, std::span<sample_id> ids) {
  places_.resize(ids.size());
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto [part, before] = mixture_->at(first + k);
    places_[k] = {part, before, k};
  }
  std::ranges::sort(places_, {}, [](const place_of_part& of) { return std::pair(of.part, of.before); });
  std::size_t count = 0;
  for (std::size_t k = 0; k < places_.size(); k += count) {
    const auto part = places_[k].part;
    const std::uint64_t size = mixture_->size(part);
    const std::uint64_t drawn = where.epoch * mixture_->in_epoch(part) + places_[k].before;
    muster::cursor own = where;
    own.epoch = drawn / size;
    own.size = size;
    own.seed = where.order == sample_order::sequential ? 0 : mix(where.seed + part);
    const std::uint64_t left = size - drawn % size;  // of its epoch
    for (count = 1; k + count < places_.size() && places_[k + count].part == part && count < left;) ++count;
    of_part_.resize(count);
    sampler& order = orders_of_parts_[part][own.epoch % 2];
    order.assign(own);
    order.fill(drawn % size, of_part_);
    for (std::size_t j = 0; j < count; ++j) ids[places_[k + j].index] = mixture_->first(part) + of_part_[j];
  }
}

void batch_sampler::deal_by(std::vector<held_shards> of_ranks) {
  of_ranks_ = std::move(of_ranks);
  holders_.assign(of_ranks_.empty() ? 0 : mixture_->parts(), {});
  for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank) {
    for (std::size_t shard = 0; shard < holders_.size(); ++shard)
      if (of_ranks_[rank].here[shard] != 0) holders_[shard].push_back(rank);
  }
}

void batch_sampler::ids_of(const muster::cursor& where, batch_shard part, std::vector<sample_id>& ids) {
  const std::uint64_t count = batch_size(where, part.world);
  const index_range mine = part_of(count, part);
  if (of_ranks_.empty()) {
    ids.resize(mine.size());
    return this->ids(where, mine.first, ids);
  }
  if (of_ranks_.size() != static_cast<std::size_t>(part.world)) {
    throw configuration_error("the ranks have agreed what each of " + std::to_string(of_ranks_.size()) +
                              " holds of the data, and there are " + std::to_string(part.world) +
                              "; agree again when ranks come or go");
  }
  if (part.virtual_shards > 0) {
    throw configuration_error(
        "samples that go to the ranks that hold them cannot be cut into virtual shards (these are the same for any "
        "ranks); give every rank all of the data, or use no virtual shards");
  }
  ids.resize(count);
  this->ids(where, 0, ids);
  share_out(ids, part.weights);
  std::size_t kept = 0;
  for (std::size_t k = 0; k < count; ++k)
    if (reader_of_[k] == static_cast<std::size_t>(part.rank)) ids[kept++] = ids[k];
  ids.resize(kept);
}

// Each sample goes to the rank that has least for its weight, among those that hold it; then once more, since what came
// later may have made another choice better, until nothing changes. Whole numbers: all ranks come to the same.
void batch_sampler::share_out(std::span<const sample_id> ids, const rank_weights& weights) {
  constexpr int most_rounds = 16;
  constexpr std::size_t no_rank = ~std::size_t{0};
  reader_of_.assign(ids.size(), no_rank);
  loads_.assign(of_ranks_.size(), 0);
  const auto load_by_weight_of = [&](std::size_t rank, std::size_t other) {  // with one sample more
    __extension__ using wide = unsigned __int128;
    return wide{loads_[rank] + 1} * of_ranks_[other].weight * (weights ? (*weights)[other] : 1);
  };
  const auto is_better = [&](std::size_t one, std::size_t other) {
    return load_by_weight_of(one, other) < load_by_weight_of(other, one);
  };
  bool changed = true;
  for (int round = 0; changed && round < most_rounds; ++round) {
    changed = false;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const auto& holders = holders_[mixture_->part_of(ids[k])];
      std::size_t best = reader_of_[k];
      if (best != no_rank) --loads_[best];
      for (const std::size_t rank : holders)
        if (best == no_rank || is_better(rank, best)) best = rank;
      ++loads_[best];
      changed = std::exchange(reader_of_[k], best) != best || changed;
    }
  }
}

}}}  // namespace muster::v0::detail

namespace muster { inline namespace v0 {

namespace {

// What a row of epochs is made of, by name; the data themselves first.
std::vector<std::pair<std::string, std::string>> properties_of(const cursor& of) {
  return {{"number of samples", std::to_string(of.size)},
          {"dataset's digest", detail::hex(of.dataset)},
          {"version", std::to_string(of.version)},
          {"order", std::string(to_string(of.order))},
          {"seed", std::to_string(of.seed)},
          {"block", std::to_string(of.block)},
          {"window", std::to_string(of.window)},
          {"drop_last", std::to_string(of.drop_last)},
          {"batch per rank", std::to_string(of.per_rank)},
          {of.per_rank != 0 ? "batch" : "global batch", std::to_string(of.batch)}};
}

}  // namespace

live_cursor::live_cursor(detail::batch_sampler& plan) noexcept : muster::cursor(plan.cursor()), plan_(&plan) {}
std::vector<std::pair<std::string, std::string>> live_cursor::properties() const {
  auto all = properties_of(now());
  if (!plan_->reads_one_source()) all.erase(all.begin(), all.begin() + 2);
  if (!plan_->classes().empty()) all.emplace_back("names of classes", detail::joined(plan_->classes(), "/"));
  return all;
}
const cursor& live_cursor::now() const noexcept { return plan_->cursor(); }
bool live_cursor::epoch_is_over() const noexcept { return detail::batch_sampler::batch_size(now()) == 0; }
void live_cursor::open(const cursor& there) const { plan_->open(there); }
void live_cursor::commit() const { plan_->commit(); }
void live_cursor::next_epoch() const { plan_->next_epoch(); }

std::string_view to_string(sample_order order) noexcept {
  constexpr std::string_view names[] = {"sequential", "shuffled", "feistel", "block_window"};
  const auto index = static_cast<std::size_t>(order);
  return index < std::size(names) ? names[index] : std::string_view("unknown");
}

std::string detail::difference(const cursor& there, const cursor& here) {
  std::string text;
  const auto theirs = properties_of(there), ours = properties_of(here);
  for (std::size_t k = 0; k < ours.size(); ++k) {
    if (theirs[k].second == ours[k].second) continue;
    text.append(text.empty() ? "" : ", ").append("the ").append(ours[k].first);
    text.append(" is ").append(theirs[k].second).append(" there and ").append(ours[k].second).append(" here");
  }
  return text;
}

}}  // namespace muster::v0
