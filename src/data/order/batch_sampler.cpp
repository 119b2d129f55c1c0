#include "batch_sampler.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

namespace muster::inline v0::detail {

std::uint64_t batch_sampler::end(const muster::cursor& of) noexcept {
  return of.drop_last != 0 ? of.size - of.size % of.batch : of.size;
}

std::uint64_t batch_sampler::batch_size(const muster::cursor& where, int world) noexcept {
  const std::uint64_t left = end(where) - where.position;
  if (where.per_rank == 0 || world < 1) return std::min(where.batch, left);
  const auto ranks = static_cast<std::uint64_t>(world);
  return left / ranks < where.batch ? left : where.batch * ranks;
}

muster::cursor batch_sampler::after(const muster::cursor& where, int world) noexcept {
  muster::cursor next = where;
  next.position += batch_size(where, world);
  if (next.position == end(next)) {
    next.position = 0;
    ++next.epoch;
  }
  return next;
}

std::uint64_t batch_sampler::steps(std::uint64_t samples) const noexcept {
  const std::uint64_t one = at_.per_rank != 0 ? at_.batch * static_cast<std::uint64_t>(world_) : at_.batch;
  return samples / one + (samples % one != 0 ? 1 : 0);
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
  if (there.position > end(there) || (there.position % there.batch != 0 && there.position != end(there))) {
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
  at_.position += count;
}

void batch_sampler::ids(const muster::cursor& where, std::uint64_t first, std::span<sample_id> ids) {
  if (ids.empty()) return;
  if (mixture_) return ids_of_mixture(where, first, ids);
  const bool ahead = where.epoch != at_.epoch;
  if (!ahead && orders_[1].is_of(where)) std::swap(orders_[0], orders_[1]);
  sampler& order = orders_[ahead ? 1 : 0];
  order.assign(where);
  order.fill(first, ids);
}

// The positions of a part that are asked for are neighbours in its own row of epochs: they are found together, and then
// put where the pattern has them.
void batch_sampler::ids_of_mixture(const muster::cursor& where, std::uint64_t first, std::span<sample_id> ids) {
  sample_id begin = 0;  // of the part
  for (std::size_t part = 0; part < mixture_->parts(); begin += mixture_->size(part++)) {
    const std::uint64_t size = mixture_->size(part);
    of_part_.clear();
    std::uint64_t drawn = 0;  // of the part, before the first of these
    for (std::uint64_t k = 0; k < ids.size(); ++k) {
      const auto [of, before] = mixture_->at(first + k);
      if (of != part) continue;
      if (of_part_.empty()) drawn = where.epoch * mixture_->in_epoch(part) + before;
      of_part_.push_back(0);
    }
    for (std::size_t done = 0; done < of_part_.size();) {
      muster::cursor own = where;
      own.epoch = (drawn + done) / size;
      own.size = size;
      own.seed = where.order == sample_order::sequential ? 0 : mix(where.seed + part);
      const std::uint64_t from = (drawn + done) % size;
      const auto count = std::min<std::size_t>(of_part_.size() - done, size - from);
      sampler& order = orders_of_parts_[part][own.epoch % 2];
      order.assign(own);
      order.fill(from, std::span(of_part_).subspan(done, count));
      done += count;
    }
    auto next = of_part_.begin();
    for (std::uint64_t k = 0; k < ids.size(); ++k) {
      if (mixture_->at(first + k).part == part) ids[k] = begin + *next++;
    }
  }
}

}  // namespace muster::inline v0::detail
