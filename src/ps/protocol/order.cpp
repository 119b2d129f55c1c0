#include "order.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "../../data/order/batch_sampler.hpp"

namespace muster { inline namespace v0 { namespace ps {
namespace {

using muster::detail::batch_sampler;

// A lease is of as many batches at most, and of a share of what is left before workers wait for each other: so the last
// leases are short.
constexpr std::uint64_t most_batches = 32;
constexpr std::uint64_t shares = 4;

void skip(cursor& from, std::uint32_t parts, std::uint64_t batches) noexcept {
  for (; batches > 0; --batches) from.position += batch_sampler::batch_size(from, static_cast<int>(parts));
}

// What is behind so many batches of it.
lease behind(lease what, std::uint64_t batches) noexcept {
  skip(what.from, what.parts, batches);
  what.batches -= static_cast<std::uint32_t>(batches);
  what.clock += batches;
  what.steps += batches;
  return what;
}

std::vector<lease> leases_behind(std::span<const std::byte> plan) {
  std::vector<lease> all((plan.size() - sizeof(order_plan)) / sizeof(lease));
  if (!all.empty())
    std::memcpy(static_cast<void*>(all.data()), plan.data() + sizeof(order_plan), all.size() * sizeof(lease));
  return all;
}

}  // namespace

void epoch_order::apply(const log_entry& entry) {
  if (entry.what == log_entry::kind::gone) return give_up(entry.from);
  if (entry.what != log_entry::kind::push) return;
  const auto& said = entry.push;
  switch (static_cast<order_word>(said.offset)) {
    case order_word::claim: {
      std::vector<member> workers(said.payload.size() / sizeof(member));
      if (!workers.empty()) std::memcpy(workers.data(), said.payload.data(), workers.size() * sizeof(member));
      close(entry.from, said.settled);
      return claim(entry.from, said.place, workers);
    }
    case order_word::begin:
      if (!problem_with(said).empty() || std::exchange(begun_, true)) return;
      std::memcpy(static_cast<void*>(&plan_), said.payload.data(), sizeof plan_);
      saved_ = plan_.steps;
      returned_ = leases_behind(said.payload);
      return;
    case order_word::pass:
      if (said.place == plan_.steps) saved_ = plan_.steps;
      return;
    case order_word::end:
      concluded_ = true;
      return;
  }
}

std::string epoch_order::problem_with(const message& asked) {
  if (asked.what == message_kind::pull) return asked.flags == leases ? "" : "it has leases alone";
  if (asked.flags != leases || asked.offset > static_cast<std::uint32_t>(order_word::end)) return "it has leases alone";
  if (static_cast<order_word>(asked.offset) != order_word::begin) return "";
  order_plan plan;
  if (asked.payload.size() < sizeof plan || (asked.payload.size() - sizeof plan) % sizeof(lease) != 0)
    return "a plan has " + std::to_string(sizeof plan) + " bytes, and a lease " + std::to_string(sizeof(lease));
  for (const auto& one : leases_behind(asked.payload)) {
    if (one.part >= one.parts || one.parts > batch_place::most_parts || one.batches == 0 || one.from.batch == 0)
      return "it has a lease of no batch";
  }
  std::memcpy(static_cast<void*>(&plan), asked.payload.data(), sizeof plan);
  auto start = plan.from;
  start.position = 0;
  const bool has_batches =
      start.batch != 0 && plan.from.position <= start.size && batch_sampler::batch_size(start) != 0;
  return has_batches ? "" : "its data has no batch";
}

void epoch_order::claim(const member& by, std::uint64_t clock, std::span<const member> workers) {
  if (!begun_ || workers.empty() || held_by(by, clock) != nullptr) return;
  const auto own = [&] {
    return std::ranges::find_if(open_,
                                [&](const dealt& one) { return one.to == by && (!bulk_ || one.what.clock == clock); });
  };
  auto found = own();
  if (found == open_.end() && (bulk_ ? clock >= clock_ : open_.empty())) {
    deal(clock, workers);
    found = own();
  }
  if (found == open_.end() && !bulk_) found = open_.begin();
  if (found == open_.end()) return;
  held_.push_back({by, found->what});
  open_.erase(found);
  auto& what = held_.back().what;
  what.clock = clock;
  clock_ = std::max(clock_, clock + what.batches);
}

void epoch_order::deal(std::uint64_t clock, std::span<const member> workers) {
  std::uint64_t most = batch_place::most_parts;
  if (plan_.from.per_rank != 0) most = std::min(most, std::max<std::uint64_t>(1, plan_.from.size / plan_.from.batch));
  workers = workers.first(std::min<std::size_t>(workers.size(), most));
  if (!returned_.empty()) return deal_returned(clock, workers);
  if (ends() || stops_to_save()) return;
  if (epoch_is_over()) {
    ++plan_.from.epoch;
    plan_.from.position = 0;
  }
  lease one{
      .parts = static_cast<std::uint32_t>(workers.size()), .clock = clock, .steps = plan_.steps, .from = plan_.from};
  one.batches = block_length(one.parts);
  for (const auto& to : workers) {
    open_.push_back({to, one});
    ++one.part;
  }
  skip(plan_.from, one.parts, one.batches);
  plan_.steps += one.batches;
  if (bulk_) clock_ = clock + one.batches;
}

// The same clocks for all: what is longer than the shortest is cut.
void epoch_order::deal_returned(std::uint64_t clock, std::span<const member> workers) {
  const auto count = std::min(returned_.size(), workers.size());
  std::uint32_t shortest = std::numeric_limits<std::uint32_t>::max();
  for (std::size_t i = 0; i < count; ++i) shortest = std::min(shortest, returned_[i].batches);
  for (std::size_t i = 0; i < count; ++i) {
    lease one = returned_.front();
    returned_.erase(returned_.begin());
    if (one.batches > shortest) returned_.push_back(behind(one, shortest));
    one.batches = shortest;
    one.clock = clock;
    open_.push_back({workers[i], one});
  }
  if (bulk_) clock_ = clock + shortest;
}

void epoch_order::close(const member& by, std::uint64_t clocks) {
  std::erase_if(held_, [&](dealt& one) {
    if (one.to != by || clocks <= one.what.clock) return false;
    const auto done = clocks - one.what.clock;
    if (done >= one.what.batches) return true;
    one.what = behind(one.what, done);
    return false;
  });
}

void epoch_order::give_up(const member& gone) {
  const auto returns = [&](const dealt& one) {
    if (one.to == gone) returned_.push_back(one.what);
    return one.to == gone;
  };
  std::erase_if(held_, returns);
  std::erase_if(open_, returns);
}

lease epoch_order::answer(const member& to, std::uint64_t clock) const {
  lease told{.clock = std::max(clock, clock_), .steps = plan_.steps, .settled = plan_.steps, .from = plan_.from};
  const auto is_left = [&](const lease& one) { told.settled = std::min(told.settled, one.steps); };
  for (const auto& one : open_) is_left(one.what);
  for (const auto& one : held_) is_left(one.what);
  std::ranges::for_each(returned_, is_left);
  if (const auto* const own = held_by(to, clock)) {
    const auto settled = told.settled;
    told = own->what;
    told.what = lease::kind::granted;
    told.settled = settled;
    return told;
  }
  if (!begun_) told.what = lease::kind::unknown;
  const bool all_counts = held_.empty() && open_.empty() && returned_.empty();
  if (begun_ && all_counts && stops_to_save()) told.what = lease::kind::save;
  if (begun_ && all_counts && ends() && !stops_to_save())
    told.what = concluded_ ? lease::kind::over : lease::kind::last;
  const auto own = std::ranges::find(open_, to, &dealt::to);  // of one that comes late, and of bulk
  if (bulk_ && own != open_.end()) told.clock = std::max(clock, own->what.clock);
  return told;
}

std::vector<member> epoch_order::holders() const {
  std::vector<member> all;
  for (const auto& one : held_) all.push_back(one.to);
  for (const auto& one : open_) all.push_back(one.to);
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<lease> epoch_order::leases_left() const {
  auto all = returned_;
  for (const auto& one : held_) all.push_back(one.what);
  for (const auto& one : open_) all.push_back(one.what);
  return all;
}

const epoch_order::dealt* epoch_order::held_by(const member& node, std::uint64_t clock) const noexcept {
  const auto found = std::ranges::find_if(held_, [&](const dealt& one) {
    return one.to == node && one.what.clock <= clock && clock - one.what.clock < one.what.batches;
  });
  return found == held_.end() ? nullptr : &*found;
}

bool epoch_order::epoch_is_over() const noexcept { return batch_sampler::batch_size(plan_.from) == 0; }

bool epoch_order::ends() const noexcept {
  const auto epochs_done = plan_.from.epoch + (epoch_is_over() ? 1 : 0);
  return (plan_.steps_limit != 0 && plan_.steps >= plan_.steps_limit) ||
         (plan_.epochs_limit != 0 && epochs_done >= plan_.epochs_limit);
}

bool epoch_order::stops_to_save() const noexcept {
  const bool by_epochs = plan_.epochs_to_save != 0, by_steps = plan_.steps_to_save != 0;
  if (saved_ >= plan_.steps || !(by_epochs || by_steps)) return false;
  return ends() || (by_steps && plan_.steps % plan_.steps_to_save == 0) ||
         (by_epochs && epoch_is_over() && (plan_.from.epoch + 1) % plan_.epochs_to_save == 0);
}

std::uint32_t epoch_order::block_length(std::uint32_t parts) const noexcept {
  const auto& at = plan_.from;
  const std::uint64_t size = at.batch * (at.per_rank != 0 ? parts : 1);
  const std::uint64_t an_epoch = at.drop_last != 0 ? at.size / size : (at.size + size - 1) / size;
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  const auto ends_with = [&](std::uint64_t epochs) { left = std::min(left, epochs * an_epoch - at.position / size); };
  if (plan_.epochs_limit != 0) ends_with(plan_.epochs_limit - at.epoch);
  if (plan_.epochs_to_save != 0) ends_with(plan_.epochs_to_save - at.epoch % plan_.epochs_to_save);
  if (plan_.steps_limit != 0) left = std::min(left, plan_.steps_limit - plan_.steps);
  if (plan_.steps_to_save != 0) left = std::min(left, plan_.steps_to_save - plan_.steps % plan_.steps_to_save);
  const auto wanted = std::clamp<std::uint64_t>(left / shares, 1, most_batches);
  std::uint32_t count = 0;  // of this epoch
  for (cursor next = at; count < wanted; ++count) {
    const auto samples = batch_sampler::batch_size(next, static_cast<int>(parts));
    if (samples == 0) break;
    next.position += samples;
  }
  return count;
}

void epoch_order::save(muster::detail::wire_writer& to) const {
  to.add(std::uint8_t{begun_}, plan_, saved_, std::uint8_t{concluded_}, clock_);
  to.add_all<dealt>(open_);
  to.add_all<dealt>(held_);
  to.add_all<lease>(returned_);
}

bool epoch_order::load(muster::detail::wire_reader& from) {
  begun_ = from.number<std::uint8_t>() != 0;
  from.read(plan_, saved_);
  concluded_ = from.number<std::uint8_t>() != 0;
  from.read(clock_);
  open_ = from.all<dealt>();
  held_ = from.all<dealt>();
  returned_ = from.all<lease>();
  return from.good();
}

}}}  // namespace muster::v0::ps
