#include "membership.hpp"

namespace muster { inline namespace v0 { namespace elastic {
namespace {

// So many members beside its monitors hear each heartbeat of a member: at 1,024 members all do within 26 s.
constexpr std::size_t told_in_turn = 4;

}  // namespace

membership::membership(member self, membership_policy policy, membership_outlet& out, clock::time_point now)
    : self_(std::move(self)), policy_(policy), out_(out), began_(now), ticked_(now) {
  own_.from = self_.id;
  own_.step = self_.step;
  own_.endpoints = self_.endpoints;
}

// ---- events ----

void membership::wake(clock::time_point now) {
  // This process itself was stopped or starved: heartbeats that came meanwhile have not been read yet.
  if (const auto gap = now - ticked_; gap > 2 * policy_.beat) {
    for (auto& [id, seen] : views_) {
      seen.heard += gap;
      if (seen.alone_since) *seen.alone_since += gap;
    }
    for (auto& [id, broke] : cut_) broke.at += gap;
    began_ += gap;
    change_began_ += gap;
  }
  ticked_ = now;
}

void membership::tick(clock::time_point now) {
  if (ended_) return;
  wake(now);
  if (is_member()) {
    find_silent_members(now);
  } else {
    announce(now);
  }
  look(now);
  if (ended_ || (!has_become_slow() && now - said_ < (must_stop_ ? policy_.beat / 4 : policy_.beat))) return;
  if (is_member()) {
    find_slow_members(now);
    find_slow_links(now);
  }
  say(now);
}

void membership::hear(clock::time_point now, const heartbeat& said) {
  if (ended_ || said.from == self_.id || gone_.contains(said.from)) return;
  auto& seen = views_[said.from];
  if (said.number <= seen.last.number) return;  // a copy, or overtaken: no heartbeat
  const auto alone_since = said.generation == seen.last.generation ? seen.alone_since : std::nullopt;
  seen = {said, now, alone_since};
  // Silent, and now it is heard: nothing has been decided yet. Other suspicions have other reasons, and stay.
  if (silent_.erase(said.from) != 0) suspects_.erase(said.from);
  read(now, said);
}

// What all are to know of a message of this generation.
void membership::read(clock::time_point now, const heartbeat& said) {
  if (!is_member() || said.generation != record_.generation || !is_in(said.from)) return;
  auto& alone = views_[said.from].alone_since;
  alone = suspects_most(said) ? std::optional(alone.value_or(now)) : std::nullopt;
  for (const auto id : said.dead) {
    if (id != self_.id && is_in(id) && dead_.insert(id).second) need_stop(now, name(id) + " died");
  }
  if (said.stopped && !must_stop_) need_stop(now, name(said.from) + " stopped");
  if (said.leaving && !wish_) find_slow_members(now);  // that may be why
  wish_ = wish_ || said.leaving;
  furthest_ = std::max(furthest_, said.step);
  if (said.removes == self_.id && !own_.leaving && record_.rank_of(said.from) == 0) {
    find_slow_members(now);  // that may be why
    slow_.emplace(self_.id, connections_are_slow);
    leave(now);
  }
  if (must_stop_ || own_.halt != 0 || said.halt == 0) return;
  own_.halt = said.halt;
  out_.halt(own_.halt);
}

void membership::learn(clock::time_point now, std::uint64_t version, const generation_record& record) {
  swapping_ = false;
  if (ended_ || version <= version_) {
    if (!ended_ && !is_member()) announce(now);
    return;
  }
  version_ = version;
  const bool was_member = is_member();
  const bool begun_anew = record.generation < record_.generation;  // by others, for which this job was over
  if (record.generation > record_.generation && record.rank_of(self_.id)) {
    enter(now, record);
  } else if (begun_anew || (was_member && !record.rank_of(self_.id))) {
    adopt(record);
    if (const auto slow = slow_.find(self_.id); own_.leaving && policy_.slow_ones_leave && slow != slow_.end())
      return finish(exit_reason::too_slow, "it left the job (" + slow->second + ")");
    if (own_.leaving) return finish(exit_reason::left, "it left on request");
    return finish(exit_reason::fenced, begun_anew ? "the job was restarted without it"
                                                  : "the other members continued without it (" + record.why + ")");
  } else {
    adopt(record);
  }
  if (!is_member()) announce(now);
  look(now);
}

void membership::store_failed(clock::time_point now) {
  swapping_ = false;
  swap_after_ = now + policy_.beat;
}

void membership::left_behind(const std::string& why) { finish(exit_reason::fenced, why); }

void membership::prove_dead(clock::time_point now, member_id peer) {
  if (ended_ || peer == self_.id || !is_in(peer) || !dead_.insert(peer).second) return;
  look(now);
}

void membership::suspect(clock::time_point now, member_id peer, const std::string& why) {
  if (ended_ || peer == self_.id || !is_member() || dead_.contains(peer)) return;
  const auto rank = ranks_.find(peer);
  if (rank == ranks_.end() || !suspects_.emplace(peer, why).second) return;
  const auto& suspected = record_.members[rank->second];
  if (suspected.host == self_.host) out_.kill(suspected);
  look(now);
}

void membership::disconnected(clock::time_point now, member_id peer, const std::string& why) {
  if (ended_ || peer == self_.id || !is_in(peer) || dead_.contains(peer)) return;
  cut_.try_emplace(peer, cut{now, why});
  need_stop(now, "the connection to " + name(peer) + " broke: " + why);
}

void membership::committed(std::uint64_t step, std::uint64_t cursor) {
  own_.step = step;
  own_.cursor = cursor;
  if (step >= record_.step) own_.needs_state = false;
}

void membership::worked(clock::duration least) {
  own_.work = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(least).count());
}

void membership::judged(const link_seen& slowest, std::uint64_t usual) {
  own_.slowest = slowest;
  own_.usual = usual;
}

void membership::stopped(clock::time_point now) {
  if (ended_ || own_.stopped || !is_member()) return;
  if (!must_stop_) begin_change(now);
  own_.stopped = true;
  say(now);
  look(now);
}

void membership::leave(clock::time_point now) {
  if (ended_ || own_.leaving) return;
  own_.leaving = true;
  if (!is_member()) return finish(exit_reason::left, "it left before it joined");
  say(now);
  look(now);
}

void membership::wait_at(std::string endpoints) { self_.endpoints = own_.endpoints = std::move(endpoints); }

// ---- before it is in ----

void membership::announce(clock::time_point now) {
  const bool waits = record_.is_waiting(self_.id);
  if (record_.generation == 0 && waits) form_first(now);
  const bool nobody_answers = std::ranges::none_of(record_.members, [&](const member& one) {
    const auto seen = views_.find(one.id);
    return seen != views_.end() && now - seen->second.heard <= policy_.quorum_timeout;
  });
  if (now - began_ > policy_.quorum_timeout && nobody_answers) {
    return finish(exit_reason::never_started,
                  record_.generation == 0
                      ? std::to_string(record_.waiting.size()) + " of " + std::to_string(policy_.initial) + " joined"
                      : "no member of the group answers");
  }
  if (waits || swapping_ || now < swap_after_) return;
  auto next = record_;
  next.waiting.push_back(self_);
  swap(next);
}

// Done by the first process that sees all of them waiting.
void membership::form_first(clock::time_point now) {
  if (swapping_ || now < swap_after_) return;
  const auto here = static_cast<int>(record_.waiting.size());
  const bool late = now - began_ > policy_.quorum_timeout / 2;
  if (here < policy_.initial && !(late && here >= policy_.min)) return;
  generation_record next;
  next.generation = 1;
  next.members = record_.waiting;
  std::ranges::sort(next.members, [](const member& a, const member& b) {
    return a.order != b.order ? a.order < b.order : a.id < b.id;
  });
  if (next.members.size() > static_cast<std::size_t>(policy_.max)) {
    next.waiting.assign(next.members.begin() + policy_.max, next.members.end());
    next.members.resize(static_cast<std::size_t>(policy_.max));
  }
  // The others begin with a copy of its state, so that all begin with the same.
  const auto furthest =
      std::ranges::max_element(next.members, [](const member& a, const member& b) { return a.step < b.step; });
  next.step = furthest->step;
  next.state_sources = {furthest->id};
  next.why = "the job began";
  swap(next);
}

void membership::enter(clock::time_point now, const generation_record& next) {
  if (next.step > record_.step) accused_before_.clear();
  for (const auto& one : record_.members) {
    for (const auto id : heartbeat_of(one.id).suspects) accused_before_.insert(std::minmax(one.id, id));
  }
  const auto before = std::move(record_.members);
  if (!is_member()) own_.needs_state = own_.step < next.step;
  adopt(next);
  for (const auto& one : before) {
    if (!is_in(one.id)) gone_.insert(one.id);
  }
  std::erase_if(dead_, [&](member_id id) { return !is_in(id); });
  suspects_.clear();
  silent_.clear();
  cut_.clear();
  slow_.clear();
  slow_above_ = 0;
  told_of_.clear();
  own_.slowest = {};
  own_.usual = own_.removes = 0;
  own_.stopped = must_stop_ = wish_ = false;
  own_.work = own_.halt = furthest_ = 0;
  out_.form(next);
  say(now);
  for (const auto& one : next.members) views_[one.id].heard = now;
}

// Finds its monitors, the members after it in the ring, and the members that it watches, those before it. One that
// waits stands before the first.
void membership::adopt(const generation_record& record) {
  record_ = record;
  ranks_.clear();
  monitors_.clear();
  others_.clear();
  watched_.clear();
  const auto size = record.members.size();
  for (std::size_t rank = 0; rank < size; ++rank) ranks_.emplace(record.members[rank].id, rank);
  const auto found = ranks_.find(self_.id);
  rank_ = found == ranks_.end() ? std::nullopt : std::optional(found->second);
  own_.generation = rank_ ? record.generation : 0;
  const auto id_of = [&](std::size_t place) { return record.members[place % size].id; };
  for (std::size_t i = 0; i < size - (rank_ ? 1 : 0); ++i) {
    const bool near = i < static_cast<std::size_t>(policy_.monitors);
    (near ? monitors_ : others_).push_back(id_of(rank_ ? *rank_ + 1 + i : i));
    if (near && rank_) watched_.insert(id_of(*rank_ + size - 1 - i));
  }
  if (!rank_) return;
  for (const auto& one : record.waiting) others_.push_back(one.id);
}

// ---- as a member ----

void membership::find_silent_members(clock::time_point now) {
  const auto judge = [&](const member& one) {
    if (one.id == self_.id || dead_.contains(one.id) || suspects_.contains(one.id)) return;
    const auto limit = one.host == self_.host ? policy_.suspicion_timeout_here() : policy_.suspicion_timeout;
    const auto heard = views_[one.id].heard;
    const bool is_silent = now - heard > limit;
    const auto broke = cut_.find(one.id);
    const bool is_cut = broke != cut_.end() && heard <= broke->second.at && now - broke->second.at > policy_.beat;
    if (!is_silent && !is_cut && !is_given_up(one)) return;
    silent_.insert(one.id);
    if (is_cut) return suspect(now, one.id, broke->second.why);
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    suspect(
        now, one.id,
        is_silent ? "no heartbeat for " + std::to_string(milliseconds) + " ms" : "its monitors receive no heartbeat");
  };
  if (must_stop_) {
    for (const auto& one : record_.members) judge(one);
  } else {
    for (const auto id : watched_) judge(record_.members[ranks_.at(id)]);
  }
  if (own_.stopped) {
    for (const auto& one : record_.members) {
      const auto since = views_[one.id].alone_since;
      if (since && now - *since > policy_.suspicion_timeout) suspect(now, one.id, "it does not hear most members");
    }
  }
  if (!own_.stopped || now - change_began_ <= policy_.quorum_timeout / 2) return;
  for (const auto& one : record_.members) {  // its heart beats, and it hangs
    if (!heartbeat_of(one.id).stopped) suspect(now, one.id, "it did not return from its step");
  }
}

void membership::look(clock::time_point now) {
  if (ended_ || !is_member()) return;
  if (!must_stop_ && !dead_.empty()) need_stop(now, name(*dead_.begin()) + " died");
  if (!must_stop_ && !suspects_.empty())
    need_stop(now, name(suspects_.begin()->first) + " is suspect: " + suspects_.begin()->second);
  plan_reconfiguration(now);
  if (!own_.stopped) return;
  adopt_suspicions(now);
  propose(now);
  if (ended_ || now - change_began_ <= policy_.quorum_timeout) return;
  const auto lost = dead_.size() + suspects_.size();
  if (record_.members.size() - lost < static_cast<std::size_t>(policy_.min)) {
    return finish(exit_reason::too_few, std::to_string(record_.members.size() - lost) + " of at least " +
                                            std::to_string(policy_.min) + " are left, and none joined");
  }
  finish(exit_reason::no_majority, "a majority of the members or the store could not be reached");
}

void membership::need_stop(clock::time_point now, const std::string& why) {
  if (must_stop_) return;
  begin_change(now);
  out_.stop(why);
  say(now);
}

// From now on all tell all.
void membership::begin_change(clock::time_point now) {
  must_stop_ = true;
  change_began_ = now;
  for (const auto& one : record_.members) {
    if (!watched_.contains(one.id)) views_[one.id].heard = now;
  }
}

// Joiners and leavers: nothing is wrong, so the group goes on to a step that all can reach before they stop.
void membership::plan_reconfiguration(clock::time_point now) {
  if (must_stop_ || own_.halt != 0 || rank_ != 0) return;
  const bool has_room = record_.members.size() < static_cast<std::size_t>(policy_.max);
  const bool joins =
      has_room && std::ranges::any_of(record_.waiting, [&](const member& one) { return is_heard(now, one.id); });
  if (!joins && !own_.leaving && !wish_) return;
  own_.halt = std::max(own_.step, furthest_) + 2;
  out_.halt(own_.halt);
  say(now);
}

void membership::adopt_suspicions(clock::time_point now) {
  if (now - change_began_ < 2 * policy_.suspicion_timeout) return;
  for (const auto& one : record_.members) {
    if (one.id == self_.id) {
      if (!suspects_.empty()) return;  // the others follow this one
      continue;
    }
    if (dead_.contains(one.id) || suspects_.contains(one.id)) continue;
    const auto& said = heartbeat_of(one.id);
    if (!said.stopped || said.suspects.empty() || suspects_most(said)) continue;
    for (const auto id : std::vector<member_id>(said.suspects)) {
      suspect(now, id, name(one.id) + " receives no heartbeat of it");
    }
    return;
  }
}

// What it hears is no group that could go on, and what it suspects is no reason to leave any member behind.
bool membership::suspects_most(const heartbeat& said) const {
  const auto lives = [this](member_id id) { return is_in(id) && !dead_.contains(id); };
  const auto living = static_cast<std::ptrdiff_t>(record_.members.size() - dead_.size());
  return 2 * std::ranges::count_if(said.suspects, lives) > living;
}

// ---- heartbeats ----

void membership::swap(const generation_record& next) {
  swapping_ = true;
  out_.swap(version_, next);
}

void membership::say(clock::time_point now) {
  said_ = now;
  auto to = monitors_;
  const bool tells_all = must_stop_ || own_.halt != 0 || own_.leaving;
  for (auto n = tells_all ? others_.size() : std::min(told_in_turn, others_.size()); n > 0; --n)
    to.push_back(others_[turn_++ % others_.size()]);
  ++own_.number;
  own_.dead.assign(dead_.begin(), dead_.end());
  own_.suspects.clear();
  for (const auto& [id, why] : suspects_) own_.suspects.push_back(id);
  out_.say(own_, to);
}

// Empty when what it said last is of another generation.
const heartbeat& membership::heartbeat_of(member_id peer) const {
  static const heartbeat nothing;
  if (peer == self_.id) return own_;
  const auto seen = views_.find(peer);
  return seen != views_.end() && seen->second.last.generation == record_.generation ? seen->second.last : nothing;
}

bool membership::is_heard(clock::time_point now, member_id peer) const {
  const auto seen = views_.find(peer);
  return seen != views_.end() && now - seen->second.heard <= policy_.suspicion_timeout;
}

bool membership::may_go() const {
  if (!own_.leaving) return false;
  bool all_leave = true;
  for (const auto& one : record_.members) {
    if (dead_.contains(one.id) || heartbeat_of(one.id).leaving) continue;
    if (heartbeat_of(one.id).stopped) return true;
    all_leave = false;
  }
  return all_leave;
}

std::string membership::reason_for(member_id peer) const {
  if (dead_.contains(peer)) return "its process ended (proof)";
  const auto found = suspects_.find(peer);
  return found == suspects_.end() ? "" : found->second + " (suspicion)";
}

std::string membership::name(member_id peer) const {
  const auto rank = ranks_.find(peer);
  return rank != ranks_.end() ? "rank " + std::to_string(rank->second) : "a joiner";
}

void membership::finish(exit_reason why, const std::string& text) {
  if (ended_) return;
  ended_ = true;
  // Where all have left together the record has no members, and names those with the state of the last step.
  if (record_.members.empty()) {
    const auto& last = record_.state_sources;
    return out_.end(why, text, !last.empty() && last.front() == self_.id);
  }
  const auto first = std::ranges::find_if(
      record_.members, [this](const member& one) { return !dead_.contains(one.id) && !suspects_.contains(one.id); });
  out_.end(why, text, first != record_.members.end() && first->id == self_.id);
}

}}}  // namespace muster::v0::elastic
