// The properties that must hold in every run, checked at every event.
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

/// Observes all events of a crew and its record. Throws violation.
class ledger {
 public:
  ledger(const crew& processes, const elastic::generation_record& present) : processes_(processes), record_(present) {}

  void trace(time now, const std::string& line) const {
    if (!traced_) return;
    std::printf("%8.3f ms  %s\n", std::chrono::duration<double, std::milli>(now.time_since_epoch()).count(),
                line.c_str());
  }
  /// Returns true if a live member has the state with which `generation` began.
  bool state_lives(const elastic::generation_record& generation) const {
    return std::any_of(generation.members.begin(), generation.members.end(), [&](const elastic::member& m) {
      const auto& subject = *processes_.at(m.id);
      return subject.alive && subject.step >= generation.progress;
    });
  }
  /// Checks the next generation that a member proposes, by the member's own knowledge.
  void proposes(time now, const process& proposer, const elastic::generation_record& next) const {
    const auto& present = proposer.protocol.record();
    if (next.generation == present.generation) return;
    for (const auto& m : present.members) {
      const bool stays = m.id == proposer.id || next.rank_of(m.id);
      if (!stays && proposer.protocol.reason_for(m.id).starts_with("no heartbeat") &&
          !proposer.protocol.is_silent(now, m.id))
        throw violation("a member is left behind for its silence, although its heartbeats arrive");
    }
  }
  /// Checks a record that replaces the present record in the store.
  void swaps(time now, const elastic::generation_record& next) {
    changed_ = now;
    if (next.generation == record_.generation) return;
    trace(now, "generation " + std::to_string(next.generation) + " of " + ids_of(next.members) + " at step " +
                   std::to_string(next.progress) + ": " + next.reason);
    if (next.generation != record_.generation + 1) throw violation("a generation was left out");
    for (const auto& m : next.members) {
      const auto& subject = *processes_.at(m.id);
      if (!record_.rank_of(m.id)) continue;  // a joiner
      if (subject.generation == record_.generation && subject.alive)
        throw violation("a member of the next generation has not stopped in this one");
      if (subject.step > next.progress) throw violation("a commit of a member is lost");
    }
    // A majority of the live members is required to leave a member behind, except with two members. A member that
    // agreed and died has agreed.
    std::size_t living = 0;
    std::size_t agreeing = 0;
    for (const auto& m : record_.members) {
      const bool agreed = next.rank_of(m.id) || leavers_.contains(m.id);
      if (agreed || processes_.at(m.id)->alive) ++living;
      if (agreed) ++agreeing;
    }
    if (living > 2 && 2 * agreeing <= living) throw violation("a minority went on by itself");
    if (next.progress < record_.progress && state_lives(record_))
      throw violation("the state of a generation is abandoned although a live member has it");
    formed_[next.generation] = next;
    if (next.progress < everywhere_) throw violation("a step that all had committed is lost");
  }
  void commits(time now, const process& committer) {
    // In a generation that has a successor, a member of that successor does not commit, and others commit at most the
    // step under way.
    const auto successor = formed_.find(committer.generation + 1);
    if (successor != formed_.end()) {
      if (successor->second.rank_of(committer.id)) throw violation("a commit in a generation that the member has left");
      if (committer.step > formed_.at(committer.generation + 1).progress + 1) throw violation("two live groups");
    }
    trace(now, std::to_string(committer.id) + " commits step " + std::to_string(committer.step) + " of generation " +
                   std::to_string(committer.generation));
    const auto first_state = states_.emplace(std::pair(committer.generation, committer.step), committer.state);
    if (first_state.first->second != committer.state) throw violation("two states of one step of one generation");
    auto& count = commits_[{committer.generation, committer.step}];
    if (++count == committer.group.members.size()) everywhere_ = std::max(everywhere_, committer.step);
    last_commit_ = now;
  }
  /// Returns the result at the end of a run.
  [[nodiscard]] outcome settle(time now) const {
    outcome result;
    result.generations = record_.generation;
    result.ended = endings_;
    for (const auto& [id, subject] : processes_) {
      if (!subject->alive) continue;
      result.lives = true;
      if (record_.rank_of(id)) {
        result.steps = std::max(result.steps, subject->step);
        if (subject->protocol.record().generation != record_.generation && now - changed_ > milliseconds(1000))
          throw violation("a member does not know its record");
      }
    }
    if (result.lives && record_.generation > 0 && now - last_commit_ > milliseconds(4000))
      throw violation("nobody makes progress any more");
    return result;
  }

  void leaves(member_id peer) { leavers_.insert(peer); }
  [[nodiscard]] bool has_left(member_id peer) const { return leavers_.contains(peer); }
  /// Returns the last step that all members of a generation have committed.
  [[nodiscard]] std::uint64_t everywhere() const { return everywhere_; }
  void ends(time now, const process& peer, const act::end& a) {
    ++endings_;
    trace(now, std::to_string(peer.id) + " ends: " + a.text);
    if (a.why == elastic::exit_reason::fenced && peer.protocol.record().rank_of(peer.id))
      throw violation("fenced by a record that it is in");
    if (a.why == elastic::exit_reason::state_lost && state_lives(peer.protocol.record()))
      throw violation("a state is declared lost although a live member has it");
  }

 private:
  static std::string ids_of(const std::vector<elastic::member>& members) {
    std::string text;
    for (const auto& m : members)
      text += (text.empty() ? "" : " ") + std::to_string(m.id) + "@" + std::to_string(m.host);
    return "{" + text + "}";
  }

  const crew& processes_;
  const elastic::generation_record& record_;  // as in the store
  std::map<std::uint64_t, elastic::generation_record> formed_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> states_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> commits_;
  std::uint64_t everywhere_ = 0;
  time last_commit_{};
  time changed_{};
  std::set<member_id> leavers_;
  int endings_ = 0;
  bool traced_ = std::getenv("MUSTER_TEST_TRACE") != nullptr;  // with one seed: prints the events
};

}  // namespace simulation
