// The faults of a simulated job: crashes, pauses, partitions, false suspicions, and processes that join and leave.
#pragma once

#include "simulation.hpp"

namespace simulation {

inline run::process* run::draw_process(bool server) {
  std::vector<process*> living;
  for (const auto& [node, each] : processes_) {
    const bool serves = dynamic_cast<server_process*>(each.get()) != nullptr;
    if (each->alive && serves == server && each->paused_until <= now_) living.push_back(each.get());
  }
  return living.empty() ? nullptr : living[random_.below(living.size())];
}

// Returns true if another live and healthy server holds every range that this server holds.
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
    // Many faults are nearly simultaneous, to test faults during a recovery.
    const auto when = i > 0 && chance(0.5) ? last + draw(0, 80) : draw(20, 1500);
    last = when;
    end = std::max(end, last);
    schedule(time{} + when, {}, [this](process&) { inject_fault(); });
  }
  schedule(time{} + milliseconds(3500), {}, [this](process&) {
    for (auto& [node, each] : processes_) each->cut = 0;
  });
  schedule(time{} + end + draw(0, 100), {}, [this](process&) { heal_a_quorum(); });
  end_if_settled(time{} + end + milliseconds(400));
}

// Ends the run early if the final state is reached: nothing more would happen.
inline void run::end_if_settled(time when) {
  schedule(when, {}, [this](process&) {
    const bool well = std::all_of(processes_.begin(), processes_.end(), [&](const auto& entry) {
      const auto& each = *entry.second;
      return !each.alive || (each.cut == 0 && each.left_cut == 0 && each.paused_until <= now_);
    });
    try {
      if (well) (void)settle();
      settled_ = well;
    } catch (const violation&) {  // not yet
    }
    if (!settled_) end_if_settled(now_ + milliseconds(150));
  });
}

inline void run::inject_fault() {
  const auto kind = random_.below(10);
  if (kind <= 1 && world_.server_crashes) {
    if (auto* const victim = draw_process(true); victim != nullptr && is_spare(victim->node)) crash(*victim);
  } else if (kind == 2 && world_.worker_crashes) {
    if (auto* const victim = draw_process(false)) crash(*victim);
  } else if (kind == 3 && world_.pauses) {
    auto* const victim = draw_process(chance(0.7));
    if (victim == nullptr || (is_server(*victim) && !is_spare(victim->node))) return;
    if (is_server(*victim)) ++server_faults_;
    pause(*victim, now_ + draw(20, 1500));
  } else if (kind == 4 && world_.partitions) {
    auto* const victim = draw_process(chance(0.7));
    if (victim == nullptr || (is_server(*victim) && !is_spare(victim->node))) return;
    ++server_faults_;
    victim->cut = random_();
    trace(ps::to_string(victim->node) + " does not reach some");
    after(draw(30, 1500), victim->node, [](process& self) { self.cut = 0; });
  } else if (kind == 5 || kind == 8) {
    world_.leases&& chance(0.7) ? join_worker() : join_server();
  } else if (kind == 6 || kind == 9) {
    scale();
  } else if (kind == 7 && world_.lies) {
    auto* const suspecting = draw_process(true);
    auto* const suspected = draw_process(chance(0.7));
    if (suspecting == nullptr || suspected == nullptr || suspecting == suspected) return;
    if (is_server(*suspected)) ++server_faults_;
    trace(ps::to_string(suspecting->node) + " suspects " + ps::to_string(suspected->node));
    dynamic_cast<server_process&>(*suspecting).core.suspect(suspected->node, false);
    auto* const worker = dynamic_cast<worker_process*>(suspected);
    if (worker == nullptr || !world_.server_crashes || chance(0.5)) return;
    trace("their connection has broken");  // both processes notice it
    suspecting->broken |= std::uint64_t{1} << suspected->node.place;
    suspected->broken |= std::uint64_t{1} << suspecting->node.place;
    worker->core.lose(suspecting->node.place, now_);
  }
}

inline void run::crash(process& victim) {
  trace(ps::to_string(victim.node) + " dies");
  victim.alive = false;
  can_serve_.erase(victim.node.place);
  if (is_server(victim)) ++server_faults_;
  const auto node = victim.node;
  if (chance(0.3)) change_links();
  if (chance(0.7)) {  // the other processes notice its end, perhaps as a broken connection; otherwise it is only silent
    const bool proven = chance(0.5);
    for (const auto& [other, each] : processes_) {
      if (!each->alive) continue;
      after(draw(0, 5), other, [this, node, proven](process& observer) {
        if (auto* const worker = dynamic_cast<worker_process*>(&observer))
          return proven ? worker->core.lose(node.place) : worker->core.lose(node.place, now_);
        dynamic_cast<server_process&>(observer).core.suspect(node, true);
      });
    }
  }
  if (is_server(victim) && chance(0.5)) schedule(now_ + draw(0, 300), {}, [this](process&) { join_server(); });
}

inline void run::join_server() {
  if (next_place_ == 60) return;
  const auto at = next_place_++;
  can_serve_.insert(at);
  if (const auto next = ps::with_standby(map_, at)) return publish(*next);
  const auto serving = std::count_if(map_.servers.begin(), map_.servers.end(),
                                     [](const ps::server_entry& server) { return !server.leaving; });
  scale_to(static_cast<std::size_t>(serving) + 1);
}

// Returns the places of servers that live or have left regularly.
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

inline void run::scale_to(std::size_t count) {
  const auto all = candidates();
  if (count > all.size()) return;
  const auto next = ps::scaled_to(map_, all, count);
  if (!next) return;
  trace(std::to_string(count) + " servers are wanted");
  publish(*next);
}

inline void run::publish(const ps::shard_map& next) {
  std::vector<ps::member> added;
  for (const auto& server : next.servers) {
    if (!map_.has_server(server.node)) added.push_back(server.node);
  }
  map_ = next;
  check_map();
  for (const auto& node : added) start_added(node);
}

inline void run::start_added(ps::member node) {
  schedule(now_ + draw(1, 60), {}, [this, node](process&) {
    if (!map_.has_server(node)) return;
    // The earlier process at this place has not seen yet that it left.
    if (find_at(node.place) != nullptr) return start_added(node);
    trace("server " + ps::to_string(node) + " starts");
    start_server(node, map_);
  });
}

}  // namespace simulation
