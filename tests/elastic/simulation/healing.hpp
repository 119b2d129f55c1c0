// The end of the faults: a quorum is made whole, and it alone, and must progress within a bound of turns.
#pragma once

#include "../simulation.hpp"

namespace simulation {

/// Turns of a member (one each 8 to 14 ms) within which a quorum has committed some steps, whatever the others do: two
/// quorum timeouts. Most of them pass until one that is silent on a member's own host counts as hung, or until a
/// generation has failed to form again and again with one that hears some members and not others.
constexpr std::uint64_t most_turns = 500;
constexpr std::uint64_t steps_to_see = 3;

// A strict majority of the members, dead ones included, with the state among them. None that leaves: it need not go on.
inline std::set<member_id> run::draw_quorum() {
  std::vector<member_id> able;
  for (const auto& m : record_.members) {
    if (find(m.id) != nullptr && !ledger_.has_left(m.id)) able.push_back(m.id);
  }
  const auto most = record_.members.size() / 2 + 1;
  const auto least = std::max(most, static_cast<std::size_t>(world_.min));
  const auto has_state = [&](member_id id) { return find(id)->step >= record_.step; };
  if (able.size() < least || std::none_of(able.begin(), able.end(), has_state)) return {};
  do {
    for (std::size_t i = able.size(); i > 1; --i) std::swap(able[i - 1], able[random_.below(i)]);
  } while (!has_state(able.front()));
  able.resize(chance(0.5) ? least : least + random_.below(able.size() - least + 1));
  return {able.begin(), able.end()};
}

inline void run::heal_a_quorum() {
  if (swaps_under_way_ > 0) return at(now_ + milliseconds(1), 0, [this] { heal_a_quorum(); });
  for (auto& cut : groups_) cut = 0;
  cut_from_store_ = 0;
  if (!world_.resets) quorum_ = draw_quorum();
  if (quorum_.empty()) return;
  healed_at_ = now_;
  everywhere_ = ledger_.everywhere();
  tell("a quorum is whole");
  std::vector<member_id> others;
  for (const auto& [id, its] : processes_) {
    its->turns = 0;
    if (!its->alive) continue;
    if (!quorum_.contains(id)) {
      others.push_back(id);
    } else if (its->paused_until > now_) {
      its->paused_until = now_;
      wake(id);
    }
  }
  for (const auto id : others) {
    if (auto* const one = find(id)) leave_faulty(*one);
  }
  at(now_ + milliseconds(6000), 0, [this] { heal_the_rest(); });
  await_progress();
}

// What a host has is the same for its processes: between two of one host no word is lost, and they have one store.
inline void run::leave_faulty(process& one) {
  const auto kind = random_.below(7);
  const bool alone =
      std::none_of(quorum_.begin(), quorum_.end(), [&](member_id id) { return find(id)->host == one.host; });
  if (kind == 0) return crash(one.id);
  if (kind == 1) return pause(one, now_ + milliseconds(6000));
  const bool deaf = kind != 2;
  const bool mute = kind != 3;
  if (kind == 6 && alone) {
    without_store_.insert(one.id);
    return tell(std::to_string(one.id) + " is cut from the store");
  }
  for (const auto id : quorum_) {
    if (find(id)->host == one.host || (kind == 4 && chance(0.5))) continue;
    if (mute) cut_.insert({one.id, id});
    if (deaf) cut_.insert({id, one.id});
  }
  if (kind == 5 && alone) without_store_.insert(one.id);
  tell(std::to_string(one.id) + " is cut from " + (kind == 4 ? "some" : "all") + (deaf ? ", deaf" : "") +
       (mute ? ", mute" : ""));
}

inline void run::await_progress() {
  for (const auto id : quorum_) turns_ = std::max(turns_, processes_.at(id)->turns);
  if (ledger_.everywhere() >= everywhere_ + steps_to_see) {
    healing_ = outcome::liveness::progressed;
    return tell("it has progressed");
  }
  const bool all_ended =
      std::none_of(quorum_.begin(), quorum_.end(), [&](member_id id) { return find(id) != nullptr; });
  if (turns_ > most_turns || all_ended) {
    if (!is_excused()) throw violation("a quorum that is whole makes no progress");
    healing_ = outcome::liveness::excused;
    turns_ = 0;
    return tell("it is excused");
  }
  after(milliseconds(10), 0, [this] { await_progress(); });
}

// The record of a change that had been agreed on may have taken members from the quorum, or added some to the others;
// and members that had waited for long are at the end of their patience.
inline bool run::is_excused() const {
  std::size_t living = 0;
  bool gave_up = false;
  for (const auto id : quorum_) {
    const auto& its = *processes_.at(id);
    if (its.alive && record_.rank_of(id)) ++living;
    gave_up = gave_up || (its.ended && its.protocol.change_began() <= healed_at_);
  }
  return gave_up || 2 * living <= record_.members.size();
}

inline void run::heal_the_rest() {
  cut_.clear();
  without_store_.clear();
}

}  // namespace simulation
