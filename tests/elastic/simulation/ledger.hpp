// What must hold in every run, checked whenever something happens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "process.hpp"

namespace simulation {

/// Sees all that happens to a crew and its record. Throws violation.
class ledger {
 public:
  ledger(const crew& of, const elastic::generation_record& present) : processes_(of), record_(present) {}

  void tell(time now, const std::string& line) const {
    if (!traced_) return;
    std::printf("%8.3f ms  %s\n", std::chrono::duration<double, std::milli>(now.time_since_epoch()).count(),
                line.c_str());
  }
  /// Whether a member of that generation lives that has the state which it began with.
  bool state_lives(const elastic::generation_record& of) const {
    return std::any_of(of.members.begin(), of.members.end(), [&](const elastic::member& m) {
      const auto& its = *processes_.at(m.id);
      return its.alive && its.step >= of.step;
    });
  }
  /// What a member wants the next generation to be, as it knows the world.
  void proposes(time now, const process& one, const elastic::generation_record& next) const {
    const auto& present = one.protocol.record();
    if (next.generation == present.generation) return;
    for (const auto& m : present.members) {
      const bool stays = m.id == one.id || next.rank_of(m.id);
      if (!stays && one.protocol.reason_for(m.id).starts_with("no heartbeat") && !one.protocol.is_silent(now, m.id))
        throw violation("a member is left behind for its silence, and it is heard");
    }
  }
  /// The store takes that record in the place of the present one.
  void swaps(time now, const elastic::generation_record& next) {
    changed_ = now;
    if (next.generation == record_.generation) return;
    tell(now, "generation " + std::to_string(next.generation) + " of " + ids_of(next.members) + " at step " +
                  std::to_string(next.step) + ": " + next.why);
    if (next.generation != record_.generation + 1) throw violation("a generation was left out");
    for (const auto& m : next.members) {
      const auto& its = *processes_.at(m.id);
      if (!record_.rank_of(m.id)) continue;  // a joiner
      if (its.generation == record_.generation && its.alive)
        throw violation("a member of the next generation has not stopped in this one");
      if (its.step > next.step) throw violation("a commit of a member is lost");
    }
    // No member is left behind by fewer than a majority of those that live, but for one of two. One that agreed and
    // died has agreed.
    std::size_t living = 0;
    std::size_t agreeing = 0;
    for (const auto& m : record_.members) {
      const bool agreed = next.rank_of(m.id) || leavers_.contains(m.id);
      if (agreed || processes_.at(m.id)->alive) ++living;
      if (agreed) ++agreeing;
    }
    if (living > 2 && 2 * agreeing <= living) throw violation("a minority went on by itself");
    if (next.step < record_.step && state_lives(record_))
      throw violation("the state of a generation is given up though a living member has it");
    formed_[next.generation] = next;
    if (next.step < everywhere_) throw violation("a step that all had committed is lost");
  }
  void commits(time now, const process& one) {
    // In a generation that has a successor no member of that one commits, and none more than what was under way.
    const auto successor = formed_.find(one.generation + 1);
    if (successor != formed_.end()) {
      if (successor->second.rank_of(one.id)) throw violation("a commit in a generation that the member has left");
      if (one.step > formed_.at(one.generation + 1).step + 1) throw violation("two live groups");
    }
    tell(now, std::to_string(one.id) + " commits step " + std::to_string(one.step) + " of generation " +
                  std::to_string(one.generation));
    const auto known = states_.emplace(std::pair(one.generation, one.step), one.state);
    if (known.first->second != one.state) throw violation("two states of one step of one generation");
    auto& count = commits_[{one.generation, one.step}];
    if (++count == one.group.members.size()) everywhere_ = std::max(everywhere_, one.step);
    last_commit_ = now;
  }
  /// At the end of a run.
  [[nodiscard]] outcome settle(time now) const {
    outcome seen;
    seen.generations = record_.generation;
    seen.ended = endings_;
    for (const auto& [id, its] : processes_) {
      if (!its->alive) continue;
      seen.lives = true;
      if (record_.rank_of(id)) {
        seen.steps = std::max(seen.steps, its->step);
        if (its->protocol.record().generation != record_.generation && now - changed_ > milliseconds(1000))
          throw violation("a member does not know its record");
      }
    }
    if (seen.lives && record_.generation > 0 && now - last_commit_ > milliseconds(4000))
      throw violation("nobody makes progress any more");
    return seen;
  }

  void leaves(member_id peer) { leavers_.insert(peer); }
  [[nodiscard]] bool has_left(member_id peer) const { return leavers_.contains(peer); }
  /// The last step that all members of its generation have committed.
  [[nodiscard]] std::uint64_t everywhere() const { return everywhere_; }
  void ends(time now, const process& one, const act::end& a) {
    ++endings_;
    tell(now, std::to_string(one.id) + " is told: " + a.text);
    if (a.why == elastic::exit_reason::fenced && one.protocol.record().rank_of(one.id))
      throw violation("fenced by a record that it is in");
    if (a.why == elastic::exit_reason::state_lost && state_lives(one.protocol.record()))
      throw violation("a state is called lost that a living member has");
  }

 private:
  static std::string ids_of(const std::vector<elastic::member>& members) {
    std::string text;
    for (const auto& m : members)
      text += (text.empty() ? "" : " ") + std::to_string(m.id) + "@" + std::to_string(m.host);
    return "{" + text + "}";
  }

  const crew& processes_;
  const elastic::generation_record& record_;  // as the store has it
  std::map<std::uint64_t, elastic::generation_record> formed_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> states_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> commits_;
  std::uint64_t everywhere_ = 0;
  time last_commit_{};
  time changed_{};
  std::set<member_id> leavers_;
  int endings_ = 0;
  bool traced_ = std::getenv("MUSTER_TEST_TRACE") != nullptr;  // with one seed: what happened
};

}  // namespace simulation
