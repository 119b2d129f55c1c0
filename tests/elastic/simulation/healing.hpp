// The end of the faults: only a quorum is restored, and it must progress within a bound of turns.
#pragma once

#include "../simulation.hpp"

namespace simulation {

/// Number of turns of a member (one every 8 to 14 ms) within which a quorum commits some steps, whatever the other
/// processes do: two quorum timeouts. Most of the time passes until a silent member on the same host counts as hung,
/// or until a generation has repeatedly failed to form with a member that receives from only some members.
constexpr std::uint64_t most_turns = 500;
constexpr std::uint64_t steps_to_see = 3;

// Draws a strict majority of the members, counting dead ones, that includes a member with the state. Members that leave
// are excluded, because they need not continue.
inline std::set<member_id> run::draw_quorum() {
  std::vector<member_id> able;
  for (const auto& m : record_.members) {
    if (find(m.id) != nullptr && !ledger_.has_left(m.id)) able.push_back(m.id);
  }
  const auto most = record_.members.size() / 2 + 1;
  const auto least = std::max(most, static_cast<std::size_t>(world_.min));
  const auto has_state = [&](member_id id) { return find(id)->step >= record_.progress; };
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
  trace("a quorum is whole");
  std::vector<member_id> others;
  for (const auto& [id, candidate] : processes_) {
    candidate->turns = 0;
    if (!candidate->alive) continue;
    if (!quorum_.contains(id)) {
      others.push_back(id);
    } else if (candidate->paused_until > now_) {
      candidate->paused_until = now_;
      wake(id);
    }
  }
  for (const auto id : others) {
    if (auto* const peer = find(id)) leave_faulty(*peer);
  }
  at(now_ + milliseconds(6000), 0, [this] { heal_the_rest(); });
  await_progress();
}

// Leaves one process faulty. Processes of one host share its faults: between two such processes no message is lost, and
// they have the same store.
inline void run::leave_faulty(process& peer) {
  const auto kind = random_.below(7);
  const bool alone =
      std::none_of(quorum_.begin(), quorum_.end(), [&](member_id id) { return find(id)->host == peer.host; });
  if (kind == 0) return crash(peer.id);
  if (kind == 1) return pause(peer, now_ + milliseconds(6000));
  const bool cannot_receive = kind != 2;
  const bool cannot_send = kind != 3;
  if (kind == 6 && alone) {
    without_store_.insert(peer.id);
    return trace(std::to_string(peer.id) + " is cut from the store");
  }
  for (const auto id : quorum_) {
    if (find(id)->host == peer.host || (kind == 4 && chance(0.5))) continue;
    if (cannot_send) cut_.insert({peer.id, id});
    if (cannot_receive) cut_.insert({id, peer.id});
  }
  if (kind == 5 && alone) without_store_.insert(peer.id);
  trace(std::to_string(peer.id) + " is cut from " + (kind == 4 ? "some" : "all") +
        (cannot_receive ? ", receives nothing" : "") + (cannot_send ? ", sends nothing" : ""));
}

inline void run::await_progress() {
  for (const auto id : quorum_) turns_ = std::max(turns_, processes_.at(id)->turns);
  if (ledger_.everywhere() >= everywhere_ + steps_to_see) {
    healing_ = outcome::liveness::progressed;
    return trace("it has progressed");
  }
  const bool all_ended =
      std::none_of(quorum_.begin(), quorum_.end(), [&](member_id id) { return find(id) != nullptr; });
  if (turns_ > most_turns || all_ended) {
    if (!is_excused()) throw violation("a quorum that is whole makes no progress");
    healing_ = outcome::liveness::excused;
    turns_ = 0;
    return trace("it is excused");
  }
  after(milliseconds(10), 0, [this] { await_progress(); });
}

// Returns true if the quorum has an excuse. The record of a change that was already agreed on may have removed members
// from the quorum, or added some to the others. Members that had waited for long may have reached their quorum timeout.
inline bool run::is_excused() const {
  std::size_t living = 0;
  bool timed_out = false;
  for (const auto id : quorum_) {
    const auto& candidate = *processes_.at(id);
    if (candidate.alive && record_.rank_of(id)) ++living;
    timed_out = timed_out || (candidate.ended && candidate.protocol.change_began() <= healed_at_);
  }
  return timed_out || 2 * living <= record_.members.size();
}

inline void run::heal_the_rest() {
  cut_.clear();
  without_store_.clear();
}

}  // namespace simulation
