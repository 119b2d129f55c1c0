// Decides the next generation after the members have stopped: which members stay, whether they may decide, and what the
// next record contains.
#pragma once

#include <muster/elastic/membership/membership.hpp>

#include <algorithm>

#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace elastic {
namespace detail {

inline bool contains(const std::vector<member_id>& ids, member_id id) {
  return std::ranges::find(ids, id) != ids.end();
}

}  // namespace detail

// Writes the next generation if this is the first of the members that stay (or the first that leaves, if all leave),
// and no member left behind can still commit. Ends the part of this process if no other member answers or the state is
// lost.
inline void membership::decide_next_generation(clock::time_point now) {
  if (!own_.stopped || ended_ || swapping_ || now < swap_after_) return;
  auto found = classify_members();
  if (!found || !ensure_state_source(*found)) return;
  const member_id first = !found->staying.empty() ? found->staying.front().id : found->leaving.front();
  if (first != self_.id || !majority_suspects_each(*found)) return;
  // All members that answer leave. The members that do not answer decide whether the job continues.
  if (found->staying.empty() && !found->suspected.empty())
    return finish(exit_reason::left, "it left; no other member answered");

  generation_record next;
  next.generation = record_.generation + 1;
  next.members = found->staying;
  for (auto& peer : next.members) peer.endpoints = heartbeat_of(peer.id).endpoints;
  find_state_sources(*found, next);
  if (next.state_sources.empty() || next.progress + 1 < record_.progress) {
    return finish(exit_reason::state_lost,
                  "all members that had the state of step " + std::to_string(record_.progress) + " died");
  }
  const std::size_t joiners = admit_waiting(now, next);
  if (!found->staying.empty() && next.members.size() < static_cast<std::size_t>(policy_.min_members)) return;
  next.reason = describe_change(found->leaving, joiners);
  propose_record(next);
}

// Returns nothing while a live member has not stopped. Also returns nothing while a live member suspects the same peer
// as in the previous generation, which would end the next one too: in time most members suspect that peer.
inline std::optional<membership::member_outcome> membership::classify_members() const {
  member_outcome found;
  for (const auto& peer : record_.members) {
    if (dead_.contains(peer.id)) continue;
    ++found.alive;
    const auto& message = heartbeat_of(peer.id);
    if (suspects_.contains(peer.id)) {
      found.suspected.push_back(peer.id);
    } else if (!message.stopped) {
      return std::nullopt;
    } else if (message.leaving) {
      found.leaving.push_back(peer.id);
    } else {
      found.staying.push_back(peer);
    }
    for (const auto id : message.suspects) {
      const bool again = former_suspicions_.contains(std::minmax(peer.id, id));
      if (again && !dead_.contains(id) && !suspects_.contains(id) && !suspects_.contains(peer.id)) return std::nullopt;
    }
  }
  return found;
}

// Keeps the state that this generation began with: if only suspects have it, or only members that leave before the
// others have copied it, then the leaving members stay. Returns false when a suspect may have the state, or may have
// copied it by now.
inline bool membership::ensure_state_source(member_outcome& members) const {
  const auto has = [&](member_id id) {
    const auto& message = heartbeat_of(id);
    return !message.needs_state && message.progress >= record_.progress;
  };
  if (members.staying.empty() || std::ranges::any_of(members.staying, [&](const member& peer) { return has(peer.id); }))
    return true;
  if (std::ranges::any_of(members.leaving, has)) {
    members.staying.clear();
    for (const auto& peer : record_.members) {
      if (!dead_.contains(peer.id) && !suspects_.contains(peer.id)) members.staying.push_back(peer);
    }
    members.leaving.clear();
    return true;
  }
  return members.suspected.empty();
}

// Returns true if a strict majority of the members that are not proven dead suspects each suspect of the outcome. With
// two such members one vote is enough.
inline bool membership::majority_suspects_each(const member_outcome& members) const {
  std::map<member_id, std::size_t> agree;
  for (const auto& peer : record_.members) {
    if (dead_.contains(peer.id) || suspects_.contains(peer.id)) continue;
    for (const auto id : peer.id == self_.id ? members.suspected : heartbeat_of(peer.id).suspects) ++agree[id];
  }
  return members.alive == 2 ||
         std::ranges::all_of(members.suspected, [&](member_id id) { return 2 * agree[id] > members.alive; });
}

// Returns true in a change if most monitors of `peer` suspect it, for a peer that this member did not monitor before
// and that has sent nothing since.
inline bool membership::monitors_suspect(const member& peer) const {
  const auto found = views_.find(peer.id);
  const bool is_watched = peer.host == self_.host || monitored_.contains(peer.id);
  if (!must_stop_ || is_watched || found == views_.end() || found->second.received_at > change_began_) return false;
  const auto& members = record_.members;
  std::size_t living = 0;
  std::size_t agree = 0;
  for (std::size_t i = 1; i <= monitors_.size(); ++i) {
    const auto monitor = members[(ranks_.at(peer.id) + i) % members.size()].id;
    if (dead_.contains(monitor) || suspects_.contains(monitor)) continue;
    ++living;
    if (detail::contains(heartbeat_of(monitor).suspects, peer.id)) ++agree;
  }
  return 2 * agree > living;
}

inline void membership::find_state_sources(const member_outcome& members, generation_record& next) const {
  for (const auto& peer : record_.members) {
    if (dead_.contains(peer.id) || suspects_.contains(peer.id)) continue;
    if (!members.staying.empty() && detail::contains(members.leaving, peer.id))
      continue;  // a member that leaves takes its state away
    const auto& message = heartbeat_of(peer.id);
    if (message.needs_state || message.progress < next.progress) continue;
    if (message.progress > next.progress) next.state_sources.clear();
    next.progress = message.progress;
    next.state_sources.push_back(peer.id);
  }
}

// Admits waiting processes with a recent heartbeat while there is room, and returns their number. Drops waiting
// processes without a recent heartbeat from the record; these announce themselves again.
inline std::size_t membership::admit_waiting(clock::time_point now, generation_record& next) const {
  const bool anybody_stays = !next.members.empty();
  std::size_t joiners = 0;
  for (const auto& peer : record_.waiting) {
    if (!has_recent_heartbeat(now, peer.id)) continue;
    const bool has_room = anybody_stays && next.members.size() < static_cast<std::size_t>(policy_.max_members);
    (has_room ? next.members : next.waiting).push_back(peer);
    joiners += has_room ? 1 : 0;
  }
  return joiners;
}

inline std::string membership::describe_change(const std::vector<member_id>& leavers, std::size_t joiners) const {
  std::vector<std::string> parts;
  for (const auto& peer : record_.members) {
    if (dead_.contains(peer.id)) {
      parts.push_back(name(peer.id) + " died: proof");
    } else if (const auto found = suspects_.find(peer.id); found != suspects_.end()) {
      parts.push_back(name(peer.id) + " fenced, suspicion: " + found->second);
    } else if (detail::contains(leavers, peer.id)) {
      const auto slow = slow_.find(peer.id);
      parts.push_back(name(peer.id) + " left" + (slow == slow_.end() ? "" : " (" + slow->second + ")"));
    }
  }
  if (joiners > 0) parts.push_back(std::to_string(joiners) + " joined");
  return parts.empty() ? "a connection broke" : muster::detail::joined(parts, ", ");
}

}}}  // namespace muster::v0::elastic
