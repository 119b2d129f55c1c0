// What workers do in the simulation: they pull and push, or get their batches from the servers and some of them join;
// and that each sample is used once at every range.
#pragma once

#include "data/order/batch_sampler.hpp"
#include "simulation.hpp"

namespace simulation {

inline void run::work_later(ps::member node, microseconds delay) {
  after(delay, node, [this, node](process& one) {
    auto& self = dynamic_cast<worker_process&>(one);
    work(self);
    if (!self.done) work_later(node, draw(1, 6));
  });
}

inline void run::work(worker_process& one) {
  auto& core = one.core;
  if (core.is_fenced()) return;
  if (core.unanswered() > 0 || core.unacknowledged() > 6) return;
  if (world_.leases) return work_by_leases(one);
  if (one.step == one.steps) {
    if (core.unacknowledged() > 0) return;
    one.done = true;
    core.leave();
    return;
  }
  if (!one.pushes_next) {
    one.pushes_next = true;
    for (auto n = 1 + random_.below(3); n > 0; --n) {
      const auto range = static_cast<ps::range_id>(random_.below(world_.ranges));
      const bool own = chance(0.5);
      // Folded once all have closed the clock, so a bulk-synchronous pull cannot see what is of this one.
      const bool bulk = world_.how.what == ps::consistency::kind::bulk;
      const auto pull = core.pull(range, {}, own && !bulk, now_);
      one.asked[pull] = {core.clock_now(), now_};
      if (own && !bulk) one.own[pull] = core.pushed(range);
    }
    return;
  }
  one.pushes_next = false;
  for (auto n = random_.below(5); n > 0; --n) {
    const auto range = static_cast<ps::range_id>(random_.below(world_.ranges));
    auto number = std::make_unique<std::uint64_t>(core.pushed(range) + 1);
    const ps::message what{.payload = std::as_bytes(std::span(number.get(), 1))};
    one.memory[{range, *number}] = std::move(number);
    const auto sequence = core.push(range, what, now_);
    clocks_[{range, one.node}].push_back(core.clock_now());
    if (clocks_[{range, one.node}].size() != sequence) throw violation("a sequence was left out");
    ++seen_.pushes;
  }
  core.next_clock();
  ++one.step;
}

inline ps::order_plan plan_of(const world& of) {
  ps::order_plan plan;
  plan.from.batch = 8;
  plan.from.size = 75;
  plan.steps_limit = static_cast<std::uint64_t>(2 * of.steps);
  return plan;
}

inline void run::claim(worker_process& one, ps::order_word what, std::uint64_t place,
                       std::span<const std::byte> payload) {
  ps::message said{.flags = ps::leases, .offset = static_cast<std::uint32_t>(what), .payload = payload};
  said.place = place;
  said.settled = one.core.clock_said();
  one.core.push(order_range(), said, now_, {payload.begin(), payload.end()});
  clocks_[{order_range(), one.node}].push_back(one.core.clock_now());
  places_[{order_range(), one.node}].push_back(0);
}

inline void run::work_by_leases(worker_process& one) {
  auto& core = one.core;
  auto& its = one.leased;
  if (one.done) return;
  if (its.is_over) {
    if (core.unacknowledged() > 0) return;
    one.done = true;
    return core.leave();
  }
  if (its.held) return train_leased(one);
  const auto plan = plan_of(world_);
  if (std::exchange(its.has_looked, true)) {
    if (core.pushed(order_range()) == 0) claim(one, ps::order_word::begin, 0, std::as_bytes(std::span(&plan, 1)));
    claim(one, ps::order_word::claim, core.clock_now(), {});
  }  // else it begins where the others are
  ps::message asked{.flags = ps::leases, .offset = one.node.at, .count = one.node.incarnation};
  asked.place = core.clock_now();
  const auto pull = core.pull(order_range(), asked, true, now_);
  one.asked[pull] = {core.clock_now(), now_};
}

inline void run::take_lease(worker_process& one, const ps::lease& told) {
  auto& its = one.leased;
  if (told.what == ps::lease::kind::granted) {
    its.joins = false;
    its.held = told;
    its.batch = 0;
    return;
  }
  one.core.move_clock(told.clock);
  its.joins = false;
  if (told.what == ps::lease::kind::last) claim(one, ps::order_word::end, 0, {});
  if (told.what == ps::lease::kind::over) its.is_over = over_ = true;
}

inline void run::train_leased(worker_process& one) {
  auto& core = one.core;
  auto& its = one.leased;
  if (!one.pushes_next) {
    one.pushes_next = true;
    const auto range = static_cast<ps::range_id>(random_.below(world_.ranges));
    const auto pull = core.pull(range, {}, chance(0.5) && world_.how.what != ps::consistency::kind::bulk, now_);
    one.asked[pull] = {core.clock_now(), now_};
    return;
  }
  one.pushes_next = false;
  const ps::batch_place at(*its.held, its.batch);
  trained_[at.number] = {*its.held, its.batch};
  for (ps::range_id range = 0; range < world_.ranges; ++range) {
    auto number = std::make_unique<std::uint64_t>(core.pushed(range) + 1);
    ps::message what{.payload = std::as_bytes(std::span(number.get(), 1))};
    what.place = at.number;
    what.settled = at.settled;
    one.memory[{range, *number}] = std::move(number);
    core.push(range, what, now_);
    clocks_[{range, one.node}].push_back(core.clock_now());
    places_[{range, one.node}].push_back(at.number);
    ++seen_.pushes;
  }
  core.next_clock();
  ++one.step;
  if (++its.batch == its.held->batches) its.held.reset();
}

inline void run::join_worker() {
  if (next_place_ == 60 || map_.workers.empty() || over_) return;
  const ps::member node{next_place_++, 1};
  map_ = *ps::with_worker(map_, node);
  check_map();
  change_links();
  tell("worker " + ps::to_string(node) + " joins");
  start_worker(node);
  dynamic_cast<worker_process&>(*find(node)).leased.joins = true;
}

inline bool run::has(const server_process& one, const ps::member& node, ps::range_id id, std::uint64_t sequence) const {
  if (!world_.leases) return one.values.last(id, node) >= sequence;
  if (id == order_range()) return true;
  return one.values.has_place(id, places_.at({id, node}).at(sequence - 1));
}

// At the end, where some worker heard of it.
inline void run::check_order() {
  std::string order;
  for (const auto at : map_.ranges[order_range()].chain) {
    muster::detail::wire_writer bytes;
    find_server(map_.server(at)->node)->values.order().save(bytes);
    auto its = bytes.take();
    if (!order.empty() && its != order) throw violation("two copies of the order differ");
    order = std::move(its);
  }
  if (!over_) return;
  const auto plan = plan_of(world_);
  for (ps::range_id id = 0; id < world_.ranges; ++id) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, int> used;
    for (const auto& row : find_server(map_.server(map_.ranges[id].head())->node)->values.of(id).rows) {
      const auto& [held, batch] = trained_.at(row.place);
      auto where = held.from;
      const auto size = [&] { return muster::detail::batch_sampler::batch_size(where); };
      for (std::uint64_t b = 0; b < batch; ++b) where.position += size();
      const auto [first, last] = muster::part_of(size(), held.shard());
      for (auto sample = first; sample < last; ++sample) ++used[{where.epoch, where.position + sample}];
    }
    std::uint64_t expected = 0;
    auto where = plan.from;
    for (std::uint64_t step = 0; step < plan.steps_limit; ++step) {
      expected += muster::detail::batch_sampler::batch_size(where);
      where = muster::detail::batch_sampler::after(where);
    }
    if (used.size() != expected) {
      throw violation("range " + std::to_string(id) + " has had " + std::to_string(used.size()) + " samples of " +
                      std::to_string(expected));
    }
    for (const auto& [sample, times] : used) {
      if (times != 1) throw violation("a sample was used more than once");
    }
  }
}

}  // namespace simulation
