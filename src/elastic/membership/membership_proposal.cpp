// What becomes of a group after its members have stopped: which of them stay, which may decide, and the next
// generation.
#include <algorithm>

#include "../../core/text.hpp"
#include "membership.hpp"

namespace muster { inline namespace v0 { namespace elastic {
namespace {

bool contains(const std::vector<member_id>& ids, member_id id) { return std::ranges::find(ids, id) != ids.end(); }

}  // namespace

// The first of those that stay writes the next generation down, once no member left behind may still commit.
void membership::propose(clock::time_point now) {
  if (!own_.stopped || ended_ || swapping_ || now < swap_after_) return;
  auto found = parted();
  if (!found || !keep_the_state(*found)) return;
  const member_id first = !found->staying.empty() ? found->staying.front().id : found->leaving.front();
  if (first != self_.id || !most_agree(*found)) return;
  // All that can be heard leave: whether the others go on is theirs to say.
  if (found->staying.empty() && !found->accused.empty())
    return finish(exit_reason::left, "it left; no other member answered");

  generation_record next;
  next.generation = record_.generation + 1;
  next.members = found->staying;
  for (auto& one : next.members) one.endpoints = heartbeat_of(one.id).endpoints;
  find_state_sources(*found, next);
  if (next.state_sources.empty() || next.step + 1 < record_.step) {
    return finish(exit_reason::state_lost,
                  "all members that had the state of step " + std::to_string(record_.step) + " died");
  }
  const std::size_t joiners = take_in(now, next);
  if (!found->staying.empty() && next.members.size() < static_cast<std::size_t>(policy_.min)) return;
  next.why = describe_change(found->leaving, joiners);
  swap(next);
}

// Nothing while a member that lives goes on; nor while one suspects another as in the generation before, which would
// end the next one too: then most will suspect it in time.
std::optional<membership::parting> membership::parted() const {
  parting found;
  for (const auto& one : record_.members) {
    if (dead_.contains(one.id)) continue;
    ++found.alive;
    const auto& said = heartbeat_of(one.id);
    if (suspects_.contains(one.id)) {
      found.accused.push_back(one.id);
    } else if (!said.stopped) {
      return std::nullopt;
    } else if (said.leaving) {
      found.leaving.push_back(one.id);
    } else {
      found.staying.push_back(one);
    }
    for (const auto id : said.suspects) {
      const bool again = accused_before_.contains(std::minmax(one.id, id));
      if (again && !dead_.contains(id) && !suspects_.contains(id) && !suspects_.contains(one.id)) return std::nullopt;
    }
  }
  return found;
}

// What this generation began with must not be forgotten because those that have it are suspect, or because they leave
// before the others have copied it: then they stay. False when any of the suspects may have it, or have copied it by
// now.
bool membership::keep_the_state(parting& of) const {
  const auto has = [&](member_id id) {
    const auto& said = heartbeat_of(id);
    return !said.needs_state && said.step >= record_.step;
  };
  if (of.staying.empty() || std::ranges::any_of(of.staying, [&](const member& one) { return has(one.id); }))
    return true;
  if (std::ranges::any_of(of.leaving, has)) {
    of.staying.clear();
    for (const auto& one : record_.members) {
      if (!dead_.contains(one.id) && !suspects_.contains(one.id)) of.staying.push_back(one);
    }
    of.leaving.clear();
    return true;
  }
  return of.accused.empty();
}

// Of each suspect a strict majority of those that are not proven dead; of two members it takes one.
bool membership::most_agree(const parting& of) const {
  std::map<member_id, std::size_t> agree;
  for (const auto& one : record_.members) {
    if (dead_.contains(one.id) || suspects_.contains(one.id)) continue;
    for (const auto id : one.id == self_.id ? of.accused : heartbeat_of(one.id).suspects) ++agree[id];
  }
  return of.alive == 2 || std::ranges::all_of(of.accused, [&](member_id id) { return 2 * agree[id] > of.alive; });
}

// In a change, of a member that was not watched before and is not heard since: whether most of its monitors suspect it.
bool membership::is_given_up(const member& one) const {
  const auto seen = views_.find(one.id);
  const bool is_watched = one.host == self_.host || watched_.contains(one.id);
  if (!must_stop_ || is_watched || seen == views_.end() || seen->second.heard > change_began_) return false;
  const auto& members = record_.members;
  std::size_t living = 0;
  std::size_t agree = 0;
  for (std::size_t i = 1; i <= monitors_.size(); ++i) {
    const auto monitor = members[(ranks_.at(one.id) + i) % members.size()].id;
    if (dead_.contains(monitor) || suspects_.contains(monitor)) continue;
    ++living;
    if (contains(heartbeat_of(monitor).suspects, one.id)) ++agree;
  }
  return 2 * agree > living;
}

void membership::find_state_sources(const parting& of, generation_record& next) const {
  for (const auto& one : record_.members) {
    if (dead_.contains(one.id) || suspects_.contains(one.id)) continue;
    if (!of.staying.empty() && contains(of.leaving, one.id)) continue;  // its state leaves with it
    const auto& said = heartbeat_of(one.id);
    if (said.needs_state || said.step < next.step) continue;
    if (said.step > next.step) next.state_sources.clear();
    next.step = said.step;
    next.cursor = said.cursor;
    next.state_sources.push_back(one.id);
  }
}

// Takes in processes that wait and are heard, as far as there is room; returns how many. The others announce themselves
// again.
std::size_t membership::take_in(clock::time_point now, generation_record& next) const {
  const bool anybody_stays = !next.members.empty();
  std::size_t joiners = 0;
  for (const auto& one : record_.waiting) {
    if (!is_heard(now, one.id)) continue;
    const bool has_room = anybody_stays && next.members.size() < static_cast<std::size_t>(policy_.max);
    (has_room ? next.members : next.waiting).push_back(one);
    joiners += has_room ? 1 : 0;
  }
  return joiners;
}

std::string membership::describe_change(const std::vector<member_id>& leavers, std::size_t joiners) const {
  std::vector<std::string> parts;
  for (const auto& one : record_.members) {
    if (dead_.contains(one.id)) {
      parts.push_back(name(one.id) + " died: proof");
    } else if (const auto found = suspects_.find(one.id); found != suspects_.end()) {
      parts.push_back(name(one.id) + " fenced, suspicion: " + found->second);
    } else if (contains(leavers, one.id)) {
      const auto slow = slow_.find(one.id);
      parts.push_back(name(one.id) + " left" + (slow == slow_.end() ? "" : " (" + slow->second + ")"));
    }
  }
  if (joiners > 0) parts.push_back(std::to_string(joiners) + " joined");
  return parts.empty() ? "a connection broke" : detail::joined(parts, ", ");
}

}}}  // namespace muster::v0::elastic
