#pragma once

#include <muster/ps/protocol/order.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <muster/data/order/batch_sampler.hpp>

namespace muster { inline namespace v0 { namespace ps {
namespace detail {

using muster::data::detail::batch_sampler;

// A lease has at most `most_batches`, and at most 1 / `shares` of the batches before the next save or the end. So
// leases are short before the workers have to wait for each other.
inline constexpr std::uint64_t most_batches = 32;
inline constexpr std::uint64_t shares = 4;

// Advances the cursor by this number of batches, of `parts` parts each.
inline void skip(cursor& place, std::uint32_t part_count, std::uint64_t batches) noexcept {
  for (; batches > 0; --batches) place.position += batch_sampler::batch_size(place, static_cast<int>(part_count));
}

// Returns the lease without its first `batches`.
inline lease remainder_after(lease rest, std::uint64_t batches) noexcept {
  skip(rest.from, rest.parts, batches);
  rest.batches -= static_cast<std::uint32_t>(batches);
  rest.clock += batches;
  rest.steps += batches;
  return rest;
}

inline std::vector<lease> leases_after_plan(std::span<const std::byte> plan) {
  std::vector<lease> all((plan.size() - sizeof(order_plan)) / sizeof(lease));
  if (!all.empty())
    std::memcpy(static_cast<void*>(all.data()), plan.data() + sizeof(order_plan), all.size() * sizeof(lease));
  return all;
}

}  // namespace detail

inline void epoch_order::apply(const log_entry& entry) {
  if (entry.type == log_entry::kind::worker_left) return return_leases(entry.sender);
  if (entry.type != log_entry::kind::push) return;
  const auto& push = entry.push;
  switch (static_cast<order_request>(push.offset)) {
    case order_request::claim: {
      std::vector<member> workers(push.payload.size() / sizeof(member));
      if (!workers.empty()) std::memcpy(workers.data(), push.payload.data(), workers.size() * sizeof(member));
      finish_batches(entry.sender, push.settled);
      return claim(entry.sender, push.place, workers);
    }
    case order_request::begin:
      if (!problem_with(push).empty() || std::exchange(started_, true)) return;
      std::memcpy(static_cast<void*>(&plan_), push.payload.data(), sizeof plan_);
      saved_ = plan_.steps;
      unassigned_ = detail::leases_after_plan(push.payload);
      return;
    case order_request::pass:
      if (push.place == plan_.steps) saved_ = plan_.steps;
      return;
    case order_request::end:
      end_confirmed_ = true;
      return;
  }
}

inline std::string epoch_order::problem_with(const message& request) {
  if (request.kind == message_kind::pull) return request.flags == leases ? "" : "it has leases alone";
  if (request.flags != leases || request.offset > static_cast<std::uint32_t>(order_request::end))
    return "it has leases alone";
  if (static_cast<order_request>(request.offset) != order_request::begin) return "";
  order_plan plan;
  if (request.payload.size() < sizeof plan || (request.payload.size() - sizeof plan) % sizeof(lease) != 0)
    return "a plan has " + std::to_string(sizeof plan) + " bytes, and a lease " + std::to_string(sizeof(lease));
  for (const auto& returned : detail::leases_after_plan(request.payload)) {
    if (returned.part >= returned.parts || returned.parts > batch_place::most_parts || returned.batches == 0 ||
        returned.from.batch == 0)
      return "it has a lease of no batch";
  }
  std::memcpy(static_cast<void*>(&plan), request.payload.data(), sizeof plan);
  auto start = plan.from;
  start.position = 0;
  const bool has_batches =
      start.batch != 0 && plan.from.position <= start.size && data::detail::batch_sampler::batch_size(start) != 0;
  return has_batches ? "" : "its data has no batch";
}

inline void epoch_order::claim(const member& worker, std::uint64_t clock, std::span<const member> workers) {
  if (!started_ || workers.empty() || held_by(worker, clock) != nullptr) return;
  const auto own = [&] {
    return std::ranges::find_if(assigned_, [&](const assignment& assigned) {
      return assigned.worker == worker && (!bulk_ || assigned.granted.clock == clock);
    });
  };
  auto found = own();
  if (found == assigned_.end() && (bulk_ ? clock >= clock_ : assigned_.empty())) {
    assign_block(clock, workers);
    found = own();
  }
  if (found == assigned_.end() && !bulk_) found = assigned_.begin();
  if (found == assigned_.end()) return;
  claimed_.push_back({worker, found->granted});
  assigned_.erase(found);
  auto& granted = claimed_.back().granted;
  granted.clock = clock;
  clock_ = std::max(clock_, clock + granted.batches);
}

inline void epoch_order::assign_block(std::uint64_t clock, std::span<const member> workers) {
  std::uint64_t most = batch_place::most_parts;
  if (plan_.from.per_rank != 0) most = std::min(most, std::max<std::uint64_t>(1, plan_.from.size / plan_.from.batch));
  workers = workers.first(std::min<std::size_t>(workers.size(), most));
  if (!unassigned_.empty()) return assign_returned(clock, workers);
  if (is_at_end() || is_save_due()) return;
  if (epoch_is_over()) {
    ++plan_.from.epoch;
    plan_.from.position = 0;
  }
  lease block{
      .parts = static_cast<std::uint32_t>(workers.size()), .clock = clock, .steps = plan_.steps, .from = plan_.from};
  block.batches = block_length(block.parts);
  for (const auto& worker : workers) {
    assigned_.push_back({worker, block});
    ++block.part;
  }
  detail::skip(plan_.from, block.parts, block.batches);
  plan_.steps += block.batches;
  if (bulk_) clock_ = clock + block.batches;
}

// All returned parts get the same clocks: a part that is longer than the shortest is split.
inline void epoch_order::assign_returned(std::uint64_t clock, std::span<const member> workers) {
  const auto count = std::min(unassigned_.size(), workers.size());
  std::uint32_t shortest = std::numeric_limits<std::uint32_t>::max();
  for (std::size_t i = 0; i < count; ++i) shortest = std::min(shortest, unassigned_[i].batches);
  for (std::size_t i = 0; i < count; ++i) {
    lease part = unassigned_.front();
    unassigned_.erase(unassigned_.begin());
    if (part.batches > shortest) unassigned_.push_back(detail::remainder_after(part, shortest));
    part.batches = shortest;
    part.clock = clock;
    assigned_.push_back({workers[i], part});
  }
  if (bulk_) clock_ = clock + shortest;
}

inline void epoch_order::finish_batches(const member& worker, std::uint64_t end_clock) {
  std::erase_if(claimed_, [&](assignment& assigned) {
    if (assigned.worker != worker || end_clock <= assigned.granted.clock) return false;
    const auto done = end_clock - assigned.granted.clock;
    if (done >= assigned.granted.batches) return true;
    assigned.granted = detail::remainder_after(assigned.granted, done);
    return false;
  });
}

inline void epoch_order::return_leases(const member& worker) {
  const auto returns = [&](const assignment& assigned) {
    if (assigned.worker == worker) unassigned_.push_back(assigned.granted);
    return assigned.worker == worker;
  };
  std::erase_if(claimed_, returns);
  std::erase_if(assigned_, returns);
}

inline lease epoch_order::answer(const member& worker, std::uint64_t clock) const {
  lease reply{.clock = std::max(clock, clock_), .steps = plan_.steps, .settled = plan_.steps, .from = plan_.from};
  const auto is_left = [&](const lease& remaining) { reply.settled = std::min(reply.settled, remaining.steps); };
  for (const auto& assigned : assigned_) is_left(assigned.granted);
  for (const auto& assigned : claimed_) is_left(assigned.granted);
  std::ranges::for_each(unassigned_, is_left);
  if (const auto* const own = held_by(worker, clock)) {
    const auto settled = reply.settled;
    reply = own->granted;
    reply.outcome = lease::kind::granted;
    reply.settled = settled;
    return reply;
  }
  if (!started_) reply.outcome = lease::kind::unknown;
  const bool all_counts = claimed_.empty() && assigned_.empty() && unassigned_.empty();
  if (started_ && all_counts && is_save_due()) reply.outcome = lease::kind::save;
  if (started_ && all_counts && is_at_end() && !is_save_due())
    reply.outcome = end_confirmed_ ? lease::kind::over : lease::kind::last;
  // Bulk: the worker continues at the clock of its assigned part, which it has not claimed yet.
  const auto own = std::ranges::find(assigned_, worker, &assignment::worker);
  if (bulk_ && own != assigned_.end()) reply.clock = std::max(clock, own->granted.clock);
  return reply;
}

inline std::vector<member> epoch_order::workers_with_parts() const {
  std::vector<member> all;
  for (const auto& assigned : claimed_) all.push_back(assigned.worker);
  for (const auto& assigned : assigned_) all.push_back(assigned.worker);
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

inline std::vector<lease> epoch_order::leases_left() const {
  auto all = unassigned_;
  for (const auto& assigned : claimed_) all.push_back(assigned.granted);
  for (const auto& assigned : assigned_) all.push_back(assigned.granted);
  return all;
}

inline const epoch_order::assignment* epoch_order::held_by(const member& node, std::uint64_t clock) const noexcept {
  const auto found = std::ranges::find_if(claimed_, [&](const assignment& assigned) {
    return assigned.worker == node && assigned.granted.clock <= clock &&
           clock - assigned.granted.clock < assigned.granted.batches;
  });
  return found == claimed_.end() ? nullptr : &*found;
}

inline bool epoch_order::epoch_is_over() const noexcept {
  return data::detail::batch_sampler::batch_size(plan_.from) == 0;
}

inline bool epoch_order::is_at_end() const noexcept {
  const auto epochs_done = plan_.from.epoch + (epoch_is_over() ? 1 : 0);
  return (plan_.steps_limit != 0 && plan_.steps >= plan_.steps_limit) ||
         (plan_.epochs_limit != 0 && epochs_done >= plan_.epochs_limit);
}

inline bool epoch_order::is_save_due() const noexcept {
  const bool by_epochs = plan_.epochs_to_save != 0, by_steps = plan_.steps_to_save != 0;
  if (saved_ >= plan_.steps || !(by_epochs || by_steps)) return false;
  return is_at_end() || (by_steps && plan_.steps % plan_.steps_to_save == 0) ||
         (by_epochs && epoch_is_over() && (plan_.from.epoch + 1) % plan_.epochs_to_save == 0);
}

inline std::uint32_t epoch_order::block_length(std::uint32_t part_count) const noexcept {
  const auto& at = plan_.from;
  const std::uint64_t size = at.batch * (at.per_rank != 0 ? part_count : 1);
  const std::uint64_t an_epoch = at.drop_last != 0 ? at.size / size : (at.size + size - 1) / size;
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  const auto ends_with = [&](std::uint64_t epochs) { left = std::min(left, epochs * an_epoch - at.position / size); };
  if (plan_.epochs_limit != 0) ends_with(plan_.epochs_limit - at.epoch);
  if (plan_.epochs_to_save != 0) ends_with(plan_.epochs_to_save - at.epoch % plan_.epochs_to_save);
  if (plan_.steps_limit != 0) left = std::min(left, plan_.steps_limit - plan_.steps);
  if (plan_.steps_to_save != 0) left = std::min(left, plan_.steps_to_save - plan_.steps % plan_.steps_to_save);
  const auto target = std::clamp<std::uint64_t>(left / detail::shares, 1, detail::most_batches);
  std::uint32_t count = 0;  // number of batches in this epoch
  for (cursor next = at; count < target; ++count) {
    const auto samples = data::detail::batch_sampler::batch_size(next, static_cast<int>(part_count));
    if (samples == 0) break;
    next.position += samples;
  }
  return count;
}

inline void epoch_order::save(muster::detail::wire_writer& writer) const {
  writer.add(std::uint8_t{started_}, plan_, saved_, std::uint8_t{end_confirmed_}, clock_);
  writer.add_all<assignment>(assigned_);
  writer.add_all<assignment>(claimed_);
  writer.add_all<lease>(unassigned_);
}

inline bool epoch_order::load(muster::detail::wire_reader& reader) {
  started_ = reader.number<std::uint8_t>() != 0;
  reader.read(plan_, saved_);
  end_confirmed_ = reader.number<std::uint8_t>() != 0;
  reader.read(clock_);
  assigned_ = reader.all<assignment>();
  claimed_ = reader.all<assignment>();
  unassigned_ = reader.all<lease>();
  return reader.good();
}

}}}  // namespace muster::v0::ps
