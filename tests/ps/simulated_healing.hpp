// The end of the faults: some servers that hold all ranges, and some workers, are healthy, and the other processes are
// not. The healthy workers must continue within a bound of turns.
#pragma once

#include "simulation.hpp"

namespace simulation {

/// Number of a worker's turns (a turn takes 4 to 9 ms) within which it takes further steps, independently of the other
/// processes. Most turns wait for repeated messages: in every third world a fifth of the messages is lost.
constexpr std::uint64_t most_turns = 2000;
constexpr int steps_to_see = 6;

// Returns true if the healthy processes hold all ranges.
inline bool run::hold_all(const std::set<ps::member>& whole) const {
  return std::all_of(map_.ranges.begin(), map_.ranges.end(), [&](const ps::shard_range& range) {
    return std::any_of(range.chain.begin(), range.chain.end(), [&](ps::node_id at) {
      const auto* const entry = map_.server(at);
      return entry != nullptr && find(entry->node) != nullptr && whole.contains(entry->node);
    });
  });
}

inline void run::heal_a_quorum() {
  if (swaps_under_way_ > 0) return schedule(now_ + milliseconds(1), {}, [this](process&) { heal_a_quorum(); });
  std::vector<process*> living;
  for (auto& [node, each] : processes_) {
    each->cut = 0;
    if (!each->alive) continue;
    living.push_back(each.get());
    if (each->paused_until <= now_) whole_.insert(node);
  }
  if (!hold_all(whole_)) return whole_.clear();
  for (std::size_t i = living.size(); i > 1; --i) std::swap(living[i - 1], living[random_.below(i)]);
  std::vector<process*> faulty;
  const auto target = random_.below(living.size() + 1);
  for (auto* const candidate : living) {
    if (faulty.size() == target) break;
    auto rest = whole_;
    if (rest.erase(candidate->node) != 0 && !hold_all(rest)) continue;
    whole_ = std::move(rest);
    faulty.push_back(candidate);
  }
  for (const auto& node : whole_) {
    auto* const worker = dynamic_cast<worker_process*>(find(node));
    // The number of a worker's remaining steps with leases is unknown.
    if (worker == nullptr || world_.leases || worker->done || worker->core.is_fenced()) continue;
    worker->steps += steps_to_see;
    must_progress_[node] = worker->step + steps_to_see;
  }
  trace(std::to_string(whole_.size()) + " are whole, and " + std::to_string(must_progress_.size()) + " must go on");
  for (auto* const each : faulty) leave_faulty(*each);
  left_faulty_ = std::move(faulty);
  await_progress();
}

inline void run::leave_faulty(process& faulty) {
  const auto kind = random_.below(6);
  if (is_server(faulty)) ++server_faults_;
  if (kind == 0 && (is_server(faulty) ? world_.server_crashes : world_.worker_crashes)) return crash(faulty);
  if (kind == 1) return pause(faulty, now_ + milliseconds(60000));
  // In both directions: no process receives for long from a process that does not receive from it.
  const bool some = kind <= 3;
  for (const auto& node : whole_) {
    if (some && chance(0.5)) continue;
    faulty.left_cut |= std::uint64_t{1} << node.place;
    find(node)->left_cut |= std::uint64_t{1} << faulty.node.place;
  }
  trace(ps::to_string(faulty.node) + " is cut from " + (some ? "some" : "all"));
}

inline void run::await_progress() {
  std::erase_if(must_progress_, [this](const auto& entry) {
    const auto* const worker = dynamic_cast<worker_process*>(find(entry.first));
    return worker == nullptr || worker->core.is_fenced() || worker->step >= entry.second;
  });
  seen_.turns = std::max(seen_.turns, waited_);
  if (must_progress_.empty()) return heal_the_rest();
  if (++waited_ > most_turns) {
    if (hold_all(whole_)) {
      const auto& [node, step] = *must_progress_.begin();
      throw violation("worker " + ps::to_string(node) + " does not come to step " + std::to_string(step) +
                      ", though all ranges are held by servers that are whole");
    }
    seen_.turns = 0;
    ++seen_.unhealed;
    trace("a range has lost those that were whole");
    return heal_the_rest();
  }
  after(draw(4, 9), {}, [this](process&) { await_progress(); });
}

inline void run::heal_the_rest() {
  for (auto& [node, each] : processes_) each->left_cut = 0;
  for (auto* const each : left_faulty_) wake(*each);
}

}  // namespace simulation
