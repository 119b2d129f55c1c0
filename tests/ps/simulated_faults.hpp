// What happens to a simulated job: crashes, pauses, partitions, lies, processes that come and leave.
#pragma once

#include "simulation.hpp"

namespace simulation {

inline run::process* run::anybody(bool server) {
  std::vector<process*> living;
  for (const auto& [node, one] : processes_) {
    const bool serves = dynamic_cast<server_process*>(one.get()) != nullptr;
    if (one->alive && serves == server && one->paused_until <= now_) living.push_back(one.get());
  }
  return living.empty() ? nullptr : living[random_.below(living.size())];
}

// Whether all that it holds is held by another that lives and is well.
inline bool run::is_spare(const ps::member& node) {
  return std::all_of(map_.ranges.begin(), map_.ranges.end(), [&](const ps::shard_range& range) {
    return std::any_of(range.chain.begin(), range.chain.end(), [&](ps::node_id at) {
      const auto* const entry = map_.server(at);
      const auto* const other = entry == nullptr ? nullptr : find(entry->node);
      return other != nullptr && !(other->node == node) && other->paused_until <= now_ && other->cut == 0;
    });
  });
}

inline void run::plan_faults() {
  const auto count = 1 + random_.below(static_cast<std::uint64_t>(world_.faults));
  microseconds last{0};
  microseconds end{0};
  for (std::uint64_t i = 0; i < count; ++i) {
    // Many at nearly the same time: what matters is what happens during a recovery.
    const auto when = i > 0 && chance(0.5) ? last + draw(0, 80) : draw(20, 1500);
    last = when;
    end = std::max(end, last);
    at(time{} + when, {}, [this](process&) { one_fault(); });
  }
  at(time{} + milliseconds(3500), {}, [this](process&) {
    for (auto& [node, one] : processes_) one->cut = 0;
  });
  at(time{} + end + draw(0, 100), {}, [this](process&) { heal_a_quorum(); });
  look_whether_settled(time{} + end + milliseconds(400));
}

// Nothing more happens when all is as it must be in the end: that need not be simulated.
inline void run::look_whether_settled(time when) {
  at(when, {}, [this](process&) {
    const bool well = std::all_of(processes_.begin(), processes_.end(), [&](const auto& entry) {
      const auto& one = *entry.second;
      return !one.alive || (one.cut == 0 && one.left_cut == 0 && one.paused_until <= now_);
    });
    try {
      if (well) (void)settle();
      settled_ = well;
    } catch (const violation&) {  // not yet
    }
    if (!settled_) look_whether_settled(now_ + milliseconds(150));
  });
}

inline void run::one_fault() {
  const auto kind = random_.below(10);
  if (kind <= 1 && world_.server_crashes) {
    if (auto* const one = anybody(true); one != nullptr && is_spare(one->node)) crash(*one);
  } else if (kind == 2 && world_.worker_crashes) {
    if (auto* const one = anybody(false)) crash(*one);
  } else if (kind == 3 && world_.pauses) {
    auto* const one = anybody(chance(0.7));
    if (one == nullptr || (is_server(*one) && !is_spare(one->node))) return;
    if (is_server(*one)) ++server_faults_;
    pause(*one, now_ + draw(20, 1500));
  } else if (kind == 4 && world_.partitions) {
    auto* const one = anybody(chance(0.7));
    if (one == nullptr || (is_server(*one) && !is_spare(one->node))) return;
    ++server_faults_;
    one->cut = random_();
    tell(ps::to_string(one->node) + " does not reach some");
    after(draw(30, 1500), one->node, [](process& its) { its.cut = 0; });
  } else if (kind == 5 || kind == 8) {
    world_.leases&& chance(0.7) ? join_worker() : join_server();
  } else if (kind == 6 || kind == 9) {
    scale();
  } else if (kind == 7 && world_.lies) {
    auto* const one = anybody(true);
    auto* const about = anybody(chance(0.7));
    if (one == nullptr || about == nullptr || one == about) return;
    if (is_server(*about)) ++server_faults_;
    tell(ps::to_string(one->node) + " suspects " + ps::to_string(about->node));
    dynamic_cast<server_process&>(*one).core.suspect(about->node, false);
    auto* const worker = dynamic_cast<worker_process*>(about);
    if (worker == nullptr || !world_.server_crashes || chance(0.5)) return;
    tell("their connection has broken");  // both ends see it
    one->broken |= std::uint64_t{1} << about->node.at;
    about->broken |= std::uint64_t{1} << one->node.at;
    worker->core.lose(one->node.at, now_);
  }
}

inline void run::crash(process& one) {
  tell(ps::to_string(one.node) + " dies");
  one.alive = false;
  can_serve_.erase(one.node.at);
  if (is_server(one)) ++server_faults_;
  const auto node = one.node;
  if (chance(0.3)) change_links();
  if (chance(0.7)) {  // its end is seen, perhaps as a broken connection; else it is only silent
    const bool proven = chance(0.5);
    for (const auto& [other, its] : processes_) {
      if (!its->alive) continue;
      after(draw(0, 5), other, [this, node, proven](process& at) {
        if (auto* const worker = dynamic_cast<worker_process*>(&at))
          return proven ? worker->core.lose(node.at) : worker->core.lose(node.at, now_);
        dynamic_cast<server_process&>(at).core.suspect(node, true);
      });
    }
  }
  if (is_server(one) && chance(0.5)) at(now_ + draw(0, 300), {}, [this](process&) { join_server(); });
}

inline void run::join_server() {
  if (next_place_ == 60) return;
  const auto at = next_place_++;
  can_serve_.insert(at);
  if (const auto next = ps::with_standby(map_, at)) return name(*next);
  const auto serving =
      std::count_if(map_.servers.begin(), map_.servers.end(), [](const ps::server_entry& one) { return !one.leaving; });
  scale_to(static_cast<std::size_t>(serving) + 1);
}

// That live, or have left in peace.
inline std::vector<ps::node_id> run::candidates() const {
  std::vector<ps::node_id> found;
  for (const auto at : can_serve_) {
    const auto* const entry = map_.server(at);
    if (entry == nullptr || find(entry->node) != nullptr) found.push_back(at);
  }
  return found;
}

inline void run::scale() {
  const auto most = candidates().size();
  const std::size_t least = 1 + world_.replicas;
  if (most > least) scale_to(least + random_.below(most - least + 1));
}

inline void run::scale_to(std::size_t wanted) {
  const auto all = candidates();
  if (wanted > all.size()) return;
  const auto next = ps::scaled_to(map_, all, wanted);
  if (!next) return;
  tell(std::to_string(wanted) + " servers are wanted");
  name(*next);
}

inline void run::name(const ps::shard_map& next) {
  std::vector<ps::member> named;
  for (const auto& one : next.servers) {
    if (!map_.has_server(one.node)) named.push_back(one.node);
  }
  map_ = next;
  check_map();
  for (const auto& node : named) begin_named(node);
}

inline void run::begin_named(ps::member node) {
  at(now_ + draw(1, 60), {}, [this, node](process&) {
    if (!map_.has_server(node)) return;
    if (find_at(node.at) != nullptr) return begin_named(node);  // its former self has not seen that it left
    tell("server " + ps::to_string(node) + " starts");
    start_server(node, map_);
  });
}

}  // namespace simulation
