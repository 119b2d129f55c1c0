// The workers of the simulation: they pull and push, or get their batches from the servers and some join later. Also
// the check that each sample is used once at every range.
#pragma once

#include <muster/data/order/batch_sampler.hpp>
#include "simulation.hpp"

namespace simulation {

inline void run::work_later(ps::member node, microseconds delay) {
  after(delay, node, [this, node](process& receiver) {
    auto& self = dynamic_cast<worker_process&>(receiver);
    work(self);
    if (!self.done) work_later(node, draw(1, 6));
  });
}

inline void run::work(worker_process& self) {
  auto& core = self.core;
  if (core.is_fenced()) return;
  if (core.unanswered() > 0 || core.unacknowledged() > 6) return;
  if (world_.leases) return work_by_leases(self);
  if (self.step == self.steps) {
    if (core.unacknowledged() > 0) return;
    self.done = true;
    core.leave();
    return;
  }
  if (!self.pushes_next) {
    self.pushes_next = true;
    for (auto n = 1 + random_.below(3); n > 0; --n) {
      const auto range = static_cast<ps::range_id>(random_.below(world_.ranges));
      const bool own = chance(0.5);
      // A clock is folded after all workers have closed it, so a bulk-synchronous pull cannot include the worker's
      // present clock.
      const bool bulk = world_.model.type == ps::consistency::kind::bulk;
      const auto pull = core.pull(range, {}, own && !bulk, now_);
      self.pulls[pull] = {core.clock_now(), now_};
      if (own && !bulk) self.own[pull] = core.pushed(range);
    }
    return;
  }
  self.pushes_next = false;
  for (auto n = random_.below(5); n > 0; --n) {
    const auto range = static_cast<ps::range_id>(random_.below(world_.ranges));
    auto number = std::make_unique<std::uint64_t>(core.pushed(range) + 1);
    const ps::message push{.payload = std::as_bytes(std::span(number.get(), 1))};
    self.memory[{range, *number}] = std::move(number);
    const auto sequence = core.push(range, push, now_);
    clocks_[{range, self.node}].push_back(core.clock_now());
    if (clocks_[{range, self.node}].size() != sequence) throw violation("a sequence was left out");
    ++seen_.pushes;
  }
  core.next_clock();
  ++self.step;
}

inline ps::order_plan plan_of(const world& options) {
  ps::order_plan plan;
  plan.from.batch = 8;
  plan.from.size = 75;
  plan.steps_limit = static_cast<std::uint64_t>(2 * options.steps);
  return plan;
}

inline void run::claim(worker_process& self, ps::order_request request, std::uint64_t place,
                       std::span<const std::byte> payload) {
  ps::message push{.flags = ps::leases, .offset = static_cast<std::uint32_t>(request), .payload = payload};
  push.place = place;
  push.settled = self.core.reported_clock();
  self.core.push(order_range(), push, now_, {payload.begin(), payload.end()});
  clocks_[{order_range(), self.node}].push_back(self.core.clock_now());
  places_[{order_range(), self.node}].push_back(0);
}

inline void run::work_by_leases(worker_process& self) {
  auto& core = self.core;
  auto& leased = self.leased;
  if (self.done) return;
  if (leased.is_over) {
    if (core.unacknowledged() > 0) return;
    self.done = true;
    return core.leave();
  }
  if (leased.held) return train_leased(self);
  const auto plan = plan_of(world_);
  if (std::exchange(leased.has_looked, true)) {
    if (core.pushed(order_range()) == 0) claim(self, ps::order_request::begin, 0, std::as_bytes(std::span(&plan, 1)));
    claim(self, ps::order_request::claim, core.clock_now(), {});
  }  // a worker without a push starts at the other workers' clock
  ps::message query{.flags = ps::leases, .offset = self.node.place, .count = self.node.incarnation};
  query.place = core.clock_now();
  const auto pull = core.pull(order_range(), query, true, now_);
  self.pulls[pull] = {core.clock_now(), now_};
}

inline void run::take_lease(worker_process& self, const ps::lease& granted) {
  auto& leased = self.leased;
  if (granted.outcome == ps::lease::kind::granted) {
    leased.joins = false;
    leased.held = granted;
    leased.batch = 0;
    return;
  }
  self.core.move_clock(granted.clock);
  leased.joins = false;
  if (granted.outcome == ps::lease::kind::last) claim(self, ps::order_request::end, 0, {});
  if (granted.outcome == ps::lease::kind::over) leased.is_over = over_ = true;
}

inline void run::train_leased(worker_process& self) {
  auto& core = self.core;
  auto& leased = self.leased;
  if (!self.pushes_next) {
    self.pushes_next = true;
    const auto range = static_cast<ps::range_id>(random_.below(world_.ranges));
    const auto pull = core.pull(range, {}, chance(0.5) && world_.model.type != ps::consistency::kind::bulk, now_);
    self.pulls[pull] = {core.clock_now(), now_};
    return;
  }
  self.pushes_next = false;
  const ps::batch_place at(*leased.held, leased.batch);
  trained_[at.number] = {*leased.held, leased.batch};
  for (ps::range_id range = 0; range < world_.ranges; ++range) {
    auto number = std::make_unique<std::uint64_t>(core.pushed(range) + 1);
    ps::message push{.payload = std::as_bytes(std::span(number.get(), 1))};
    push.place = at.number;
    push.settled = at.settled;
    self.memory[{range, *number}] = std::move(number);
    core.push(range, push, now_);
    clocks_[{range, self.node}].push_back(core.clock_now());
    places_[{range, self.node}].push_back(at.number);
    ++seen_.pushes;
  }
  core.next_clock();
  ++self.step;
  if (++leased.batch == leased.held->batches) leased.held.reset();
}

inline void run::join_worker() {
  if (next_place_ == 60 || map_.workers.empty() || over_) return;
  const ps::member node{next_place_++, 1};
  map_ = *ps::with_worker(map_, node);
  check_map();
  change_links();
  trace("worker " + ps::to_string(node) + " joins");
  start_worker(node);
  dynamic_cast<worker_process&>(*find(node)).leased.joins = true;
}

inline bool run::has(const server_process& server, const ps::member& node, ps::range_id id,
                     std::uint64_t sequence) const {
  if (!world_.leases) return server.values.last(id, node) >= sequence;
  if (id == order_range()) return true;
  return server.values.has_place(id, places_.at({id, node}).at(sequence - 1));
}

// Called at the end, if some worker received `lease::kind::over`.
inline void run::check_order() {
  std::string order;
  for (const auto at : map_.ranges[order_range()].chain) {
    muster::detail::wire_writer bytes;
    find_server(map_.server(at)->node)->values.order().save(bytes);
    auto encoded = bytes.take();
    if (!order.empty() && encoded != order) throw violation("two copies of the order differ");
    order = std::move(encoded);
  }
  if (!over_) return;
  const auto plan = plan_of(world_);
  for (ps::range_id id = 0; id < world_.ranges; ++id) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, int> used;
    for (const auto& row : find_server(map_.server(map_.ranges[id].head())->node)->values.ledger_of(id).rows) {
      const auto& [held, batch] = trained_.at(row.place);
      auto at = held.from;
      const auto size = [&] { return muster::data::detail::batch_sampler::batch_size(at); };
      for (std::uint64_t b = 0; b < batch; ++b) at.position += size();
      const auto [first, last] = muster::part_of(size(), held.shard());
      for (auto sample = first; sample < last; ++sample) ++used[{at.epoch, at.position + sample}];
    }
    std::uint64_t expected = 0;
    auto at = plan.from;
    for (std::uint64_t step = 0; step < plan.steps_limit; ++step) {
      expected += muster::data::detail::batch_sampler::batch_size(at);
      at = muster::data::detail::batch_sampler::after(at);
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
