// The end of the faults: some servers that hold all ranges, and some workers, are whole, and they alone; these workers
// must go on within a bound of turns.
#pragma once

#include "simulation.hpp"

namespace simulation {

/// Turns of a worker (one each 4 to 9 ms) within which it has taken some more steps, whatever the others do. Most are
/// for messages that are sent again: in every third world one of five is lost.
constexpr std::uint64_t most_turns = 2000;
constexpr int steps_to_see = 6;

// Whether those that are whole hold all ranges.
inline bool run::hold_all(const std::set<ps::member>& whole) const {
  return std::all_of(map_.ranges.begin(), map_.ranges.end(), [&](const ps::shard_range& range) {
    return std::any_of(range.chain.begin(), range.chain.end(), [&](ps::node_id at) {
      const auto* const entry = map_.server(at);
      return entry != nullptr && find(entry->node) != nullptr && whole.contains(entry->node);
    });
  });
}

inline void run::heal_a_quorum() {
  if (swaps_under_way_ > 0) return at(now_ + milliseconds(1), {}, [this](process&) { heal_a_quorum(); });
  std::vector<process*> living;
  for (auto& [node, one] : processes_) {
    one->cut = 0;
    if (!one->alive) continue;
    living.push_back(one.get());
    if (one->paused_until <= now_) whole_.insert(node);
  }
  if (!hold_all(whole_)) return whole_.clear();
  for (std::size_t i = living.size(); i > 1; --i) std::swap(living[i - 1], living[random_.below(i)]);
  std::vector<process*> others;
  const auto wanted = random_.below(living.size() + 1);
  for (auto* const one : living) {
    if (others.size() == wanted) break;
    auto rest = whole_;
    if (rest.erase(one->node) != 0 && !hold_all(rest)) continue;
    whole_ = std::move(rest);
    others.push_back(one);
  }
  for (const auto& node : whole_) {
    auto* const worker = dynamic_cast<worker_process*>(find(node));
    // Of a worker with leases it is not known how many steps are left to it.
    if (worker == nullptr || world_.leases || worker->done || worker->core.is_fenced()) continue;
    worker->steps += steps_to_see;
    must_progress_[node] = worker->step + steps_to_see;
  }
  tell(std::to_string(whole_.size()) + " are whole, and " + std::to_string(must_progress_.size()) + " must go on");
  for (auto* const one : others) leave_faulty(*one);
  left_faulty_ = std::move(others);
  await_progress();
}

inline void run::leave_faulty(process& one) {
  const auto kind = random_.below(6);
  if (is_server(one)) ++server_faults_;
  if (kind == 0 && (is_server(one) ? world_.server_crashes : world_.worker_crashes)) return crash(one);
  if (kind == 1) return pause(one, now_ + milliseconds(60000));
  // Both ways: over a connection none hears another for long that does not hear it.
  const bool some = kind <= 3;
  for (const auto& node : whole_) {
    if (some && chance(0.5)) continue;
    one.left_cut |= std::uint64_t{1} << node.at;
    find(node)->left_cut |= std::uint64_t{1} << one.node.at;
  }
  tell(ps::to_string(one.node) + " is cut from " + (some ? "some" : "all"));
}

inline void run::await_progress() {
  std::erase_if(must_progress_, [this](const auto& entry) {
    const auto* const one = dynamic_cast<worker_process*>(find(entry.first));
    return one == nullptr || one->core.is_fenced() || one->step >= entry.second;
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
    tell("a range has lost those that were whole");
    return heal_the_rest();
  }
  after(draw(4, 9), {}, [this](process&) { await_progress(); });
}

inline void run::heal_the_rest() {
  for (auto& [node, one] : processes_) one->left_cut = 0;
  for (auto* const one : left_faulty_) wake(*one);
}

}  // namespace simulation
