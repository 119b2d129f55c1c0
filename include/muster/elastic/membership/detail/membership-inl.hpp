#pragma once

#include <muster/elastic/membership/membership.hpp>

namespace muster { inline namespace v0 { namespace elastic {
namespace detail {

// Number of members, beside its monitors, that receive each heartbeat of a member: at 1,024 members all receive one
// within 26 s.
inline constexpr std::size_t extra_recipients = 4;

}  // namespace detail

inline membership::membership(member self, membership_policy policy, membership_outlet& outlet, clock::time_point now)
    : self_(std::move(self)), policy_(policy), outlet_(outlet), waiting_since_(now), last_wake_(now) {
  own_.sender = self_.id;
  own_.progress = self_.progress;
  own_.endpoints = self_.endpoints;
}

// ---- events ----

inline void membership::wake(clock::time_point now) {
  // This process itself was stopped or starved: the heartbeats that arrived in the meantime are still unread.
  if (const auto gap = now - last_wake_; gap > 2 * policy_.heartbeat_interval) {
    for (auto& [id, peer_view] : views_) {
      peer_view.received_at += gap;
      if (peer_view.suspects_most_since) *peer_view.suspects_most_since += gap;
    }
    for (auto& [id, broke] : broken_connections_) broke.at += gap;
    waiting_since_ += gap;
    change_began_ += gap;
  }
  last_wake_ = now;
}

inline void membership::tick(clock::time_point now) {
  if (ended_) return;
  wake(now);
  if (is_member()) {
    find_silent_members(now);
  } else {
    announce(now);
  }
  evaluate(now);
  if (ended_ || (!has_become_slow() &&
                 now - last_sent_ < (must_stop_ ? policy_.heartbeat_interval / 4 : policy_.heartbeat_interval)))
    return;
  if (is_member()) {
    find_slow_members(now);
    find_slow_links(now);
  }
  send_heartbeat(now);
}

inline void membership::on_heartbeat(clock::time_point now, const heartbeat& message) {
  if (ended_ || message.sender == self_.id || former_members_.contains(message.sender)) return;
  auto& sender_view = views_[message.sender];
  if (message.number <= sender_view.last.number) return;  // a copy, or overtaken by a later one
  const auto suspects_most_since =
      message.generation == sender_view.last.generation ? sender_view.suspects_most_since : std::nullopt;
  sender_view = {message, now, suspects_most_since};
  // The peer was suspect for its silence and now sends: nothing has been decided yet. Suspicions with other reasons
  // stay.
  if (cleared_by_heartbeat_.erase(message.sender) != 0) suspects_.erase(message.sender);
  merge_heartbeat(now, message);
}

// Merges the facts of a heartbeat from the present generation that all members must know.
inline void membership::merge_heartbeat(clock::time_point now, const heartbeat& message) {
  if (!is_member() || message.generation != record_.generation || !is_in(message.sender)) return;
  auto& suspects_most_since = views_[message.sender].suspects_most_since;
  suspects_most_since = suspects_most(message) ? std::optional(suspects_most_since.value_or(now)) : std::nullopt;
  for (const auto id : message.dead) {
    if (id != self_.id && is_in(id) && dead_.insert(id).second) stop_rank(now, name(id) + " died");
  }
  if (message.stopped && !must_stop_) stop_rank(now, name(message.sender) + " stopped");
  if (message.leaving && !another_leaves_) find_slow_members(now);  // that may be the reason
  another_leaves_ = another_leaves_ || message.leaving;
  furthest_ = std::max(furthest_, message.progress);
  if (message.member_to_remove == self_.id && !own_.leaving && record_.rank_of(message.sender) == 0) {
    find_slow_members(now);  // that may be the reason
    slow_.emplace(self_.id, connections_are_slow);
    leave(now);
  }
  if (must_stop_ || own_.halt != 0 || message.halt == 0) return;
  own_.halt = message.halt;
  outlet_.halt(own_.halt);
}

inline void membership::on_record(clock::time_point now, std::uint64_t version, const generation_record& record) {
  swapping_ = false;
  if (ended_ || version <= version_) {
    if (!ended_ && !is_member()) announce(now);
    return;
  }
  version_ = version;
  const bool was_member = is_member();
  const bool restarted = record.generation < record_.generation;  // written by processes for which this job was over
  if (record.generation > record_.generation && record.rank_of(self_.id)) {
    enter(now, record);
  } else if (restarted || (was_member && !record.rank_of(self_.id))) {
    set_record(record);
    if (const auto slow = slow_.find(self_.id); own_.leaving && policy_.slow_members_leave && slow != slow_.end())
      return finish(exit_reason::too_slow, "it left the job (" + slow->second + ")");
    if (own_.leaving) return finish(exit_reason::left, "it left on request");
    return finish(exit_reason::fenced, restarted ? "the job was restarted without it"
                                                 : "the other members continued without it (" + record.reason + ")");
  } else {
    set_record(record);
  }
  if (!is_member()) announce(now);
  evaluate(now);
}

inline void membership::store_failed(clock::time_point now) {
  swapping_ = false;
  swap_after_ = now + policy_.heartbeat_interval;
}

inline void membership::left_behind(const std::string& reason) { finish(exit_reason::fenced, reason); }

inline void membership::prove_dead(clock::time_point now, member_id peer) {
  if (ended_ || peer == self_.id || !is_in(peer) || !dead_.insert(peer).second) return;
  evaluate(now);
}

inline void membership::suspect(clock::time_point now, member_id peer, const std::string& reason) {
  if (ended_ || peer == self_.id || !is_member() || dead_.contains(peer)) return;
  const auto rank = ranks_.find(peer);
  if (rank == ranks_.end() || !suspects_.emplace(peer, reason).second) return;
  const auto& suspected = record_.members[rank->second];
  if (suspected.host == self_.host) outlet_.kill(suspected);
  evaluate(now);
}

inline void membership::disconnected(clock::time_point now, member_id peer, const std::string& reason) {
  if (ended_ || peer == self_.id || !is_in(peer) || dead_.contains(peer)) return;
  broken_connections_.try_emplace(peer, broken_connection{now, reason});
  stop_rank(now, "the connection to " + name(peer) + " broke: " + reason);
}

inline void membership::committed(std::uint64_t progress, std::uint64_t steps) {
  own_.progress = progress;
  own_.steps = steps;
  if (progress >= record_.progress) own_.needs_state = false;
}

inline void membership::report_step_time(clock::duration least) {
  own_.own_step_microseconds =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(least).count());
}

inline void membership::report_slow_link(const link_seen& slowest, std::uint64_t best_rate) {
  own_.slowest = slowest;
  own_.best_rate = best_rate;
}

inline void membership::stopped(clock::time_point now) {
  if (ended_ || own_.stopped || !is_member()) return;
  if (!must_stop_) begin_change(now);
  own_.stopped = true;
  send_heartbeat(now);
  evaluate(now);
}

inline void membership::leave(clock::time_point now) {
  if (ended_ || own_.leaving) return;
  own_.leaving = true;
  if (!is_member()) return finish(exit_reason::left, "it left before it joined");
  send_heartbeat(now);
  evaluate(now);
}

inline void membership::set_endpoints(std::string endpoints) {
  self_.endpoints = own_.endpoints = std::move(endpoints);
}

// ---- before this process is a member ----

inline void membership::announce(clock::time_point now) {
  const bool waits = record_.is_waiting(self_.id);
  if (record_.generation == 0 && waits) form_first(now);
  const bool none_answers = std::ranges::none_of(record_.members, [&](const member& peer) {
    const auto found = views_.find(peer.id);
    return found != views_.end() && now - found->second.received_at <= policy_.quorum_timeout;
  });
  if (now - waiting_since_ > policy_.quorum_timeout && none_answers) {
    return finish(exit_reason::never_started,
                  record_.generation == 0
                      ? std::to_string(record_.waiting.size()) + " of " + std::to_string(policy_.initial_members) +
                            " joined; check that the others have the same user, job and rendezvous, or set --min-ranks"
                      : "no member of the group answers");
  }
  if (waits || swapping_ || now < swap_after_) return;
  auto next = record_;
  next.waiting.push_back(self_);
  propose_record(next);
}

// Writes the first generation if enough processes wait. The first process that sees them succeeds.
inline void membership::form_first(clock::time_point now) {
  if (swapping_ || now < swap_after_) return;
  const auto waiting_count = static_cast<int>(record_.waiting.size());
  const bool late = now - waiting_since_ > policy_.quorum_timeout / 2;
  const int enough = late ? std::max(policy_.min_members, policy_.min_at_start) : policy_.initial_members;
  if (waiting_count < std::min(enough, policy_.initial_members)) return;
  generation_record next;
  next.generation = 1;
  next.members = record_.waiting;
  std::ranges::sort(next.members, [](const member& a, const member& b) {
    return a.order != b.order ? a.order < b.order : a.id < b.id;
  });
  if (next.members.size() > static_cast<std::size_t>(policy_.max_members)) {
    next.waiting.assign(next.members.begin() + policy_.max_members, next.members.end());
    next.members.resize(static_cast<std::size_t>(policy_.max_members));
  }
  // The others begin with a copy of the state of the furthest member, the first in the order of ranks if several are
  // equally far, so that all begin with the same state.
  const auto furthest =
      std::ranges::max_element(next.members, [](const member& a, const member& b) { return a.progress < b.progress; });
  next.progress = furthest->progress;
  next.state_sources = {furthest->id};
  next.reason = next.members.size() < static_cast<std::size_t>(policy_.initial_members)
                    ? "the job began with " + std::to_string(next.members.size()) + " of " +
                          std::to_string(policy_.initial_members) + " ranks, since no other rank joined in time"
                    : "the job began";
  propose_record(next);
}

inline void membership::enter(clock::time_point now, const generation_record& next) {
  if (next.progress > record_.progress) former_suspicions_.clear();
  for (const auto& peer : record_.members) {
    for (const auto id : heartbeat_of(peer.id).suspects) former_suspicions_.insert(std::minmax(peer.id, id));
  }
  const auto before = std::move(record_.members);
  if (!is_member()) own_.needs_state = own_.progress < next.progress;
  set_record(next);
  for (const auto& peer : before) {
    if (!is_in(peer.id)) former_members_.insert(peer.id);
  }
  std::erase_if(dead_, [&](member_id id) { return !is_in(id); });
  suspects_.clear();
  cleared_by_heartbeat_.clear();
  broken_connections_.clear();
  slow_.clear();
  slow_above_ = 0;
  reported_links_.clear();
  own_.slowest = {};
  own_.best_rate = own_.member_to_remove = 0;
  own_.stopped = must_stop_ = another_leaves_ = false;
  own_.own_step_microseconds = own_.halt = furthest_ = 0;
  outlet_.form(next);
  send_heartbeat(now);
  for (const auto& peer : next.members) views_[peer.id].received_at = now;
}

// Takes over the record. Computes this process's monitors, which are the members after it in the ring, and the members
// that it monitors, which are before it. The position of a waiting process is before the first member.
inline void membership::set_record(const generation_record& record) {
  record_ = record;
  ranks_.clear();
  monitors_.clear();
  rotating_recipients_.clear();
  monitored_.clear();
  const auto size = record.members.size();
  for (std::size_t rank = 0; rank < size; ++rank) ranks_.emplace(record.members[rank].id, rank);
  const auto found = ranks_.find(self_.id);
  rank_ = found == ranks_.end() ? std::nullopt : std::optional(found->second);
  own_.generation = rank_ ? record.generation : 0;
  const auto id_of = [&](std::size_t place) { return record.members[place % size].id; };
  for (std::size_t i = 0; i < size - (rank_ ? 1 : 0); ++i) {
    const bool near = i < static_cast<std::size_t>(policy_.monitors);
    (near ? monitors_ : rotating_recipients_).push_back(id_of(rank_ ? *rank_ + 1 + i : i));
    if (near && rank_) monitored_.insert(id_of(*rank_ + size - 1 - i));
  }
  if (!rank_) return;
  for (const auto& peer : record.waiting) rotating_recipients_.push_back(peer.id);
}

// ---- as a member ----

inline void membership::find_silent_members(clock::time_point now) {
  const auto judge = [&](const member& peer) {
    if (peer.id == self_.id || dead_.contains(peer.id) || suspects_.contains(peer.id)) return;
    const auto limit = peer.host == self_.host ? policy_.local_suspicion_timeout() : policy_.suspicion_timeout;
    const auto received_at = views_[peer.id].received_at;
    const bool is_silent = now - received_at > limit;
    const auto broke = broken_connections_.find(peer.id);
    const bool is_cut = broke != broken_connections_.end() && received_at <= broke->second.at &&
                        now - broke->second.at > policy_.heartbeat_interval;
    if (!is_silent && !is_cut && !monitors_suspect(peer)) return;
    cleared_by_heartbeat_.insert(peer.id);
    if (is_cut) return suspect(now, peer.id, broke->second.reason);
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    suspect(
        now, peer.id,
        is_silent ? "no heartbeat for " + std::to_string(milliseconds) + " ms" : "its monitors receive no heartbeat");
  };
  if (must_stop_) {
    for (const auto& peer : record_.members) judge(peer);
  } else {
    for (const auto id : monitored_) judge(record_.members[ranks_.at(id)]);
  }
  if (own_.stopped) {
    for (const auto& peer : record_.members) {
      const auto since = views_[peer.id].suspects_most_since;
      if (since && now - *since > policy_.suspicion_timeout)
        suspect(now, peer.id, "it receives no heartbeat from most members");
    }
  }
  if (!own_.stopped || now - change_began_ <= policy_.quorum_timeout / 2) return;
  for (const auto& peer : record_.members) {  // its heart beats, and its rank hangs
    if (!heartbeat_of(peer.id).stopped) suspect(now, peer.id, "it did not return from its step");
  }
}

inline void membership::evaluate(clock::time_point now) {
  if (ended_ || !is_member()) return;
  if (!must_stop_ && !dead_.empty()) stop_rank(now, name(*dead_.begin()) + " died");
  if (!must_stop_ && !suspects_.empty())
    stop_rank(now, name(suspects_.begin()->first) + " is suspect: " + suspects_.begin()->second);
  plan_reconfiguration(now);
  if (!own_.stopped) return;
  adopt_suspicions(now);
  decide_next_generation(now);
  if (ended_ || now - change_began_ <= policy_.quorum_timeout) return;
  const auto lost = dead_.size() + suspects_.size();
  if (record_.members.size() - lost < static_cast<std::size_t>(policy_.min_members)) {
    return finish(exit_reason::too_few, std::to_string(record_.members.size() - lost) + " of at least " +
                                            std::to_string(policy_.min_members) + " are left, and none joined");
  }
  finish(exit_reason::no_majority, "a majority of the members or the store could not be reached");
}

inline void membership::stop_rank(clock::time_point now, const std::string& reason) {
  if (must_stop_) return;
  begin_change(now);
  outlet_.stop(reason);
  send_heartbeat(now);
}

// After this call this member sends its heartbeats to all members and judges the silence of all.
inline void membership::begin_change(clock::time_point now) {
  must_stop_ = true;
  change_began_ = now;
  for (const auto& peer : record_.members) {
    if (!monitored_.contains(peer.id)) views_[peer.id].received_at = now;
  }
}

// Plans the change for joiners and leavers. Nothing has failed, so the group continues to a step that all can reach
// before they stop.
inline void membership::plan_reconfiguration(clock::time_point now) {
  if (must_stop_ || own_.halt != 0 || rank_ != 0) return;
  const bool has_room = record_.members.size() < static_cast<std::size_t>(policy_.max_members);
  const bool joins = has_room && std::ranges::any_of(record_.waiting, [&](const member& peer) {
                       return has_recent_heartbeat(now, peer.id);
                     });
  if (!joins && !own_.leaving && !another_leaves_) return;
  own_.halt = std::max(own_.progress, furthest_) + 2;
  outlet_.halt(own_.halt);
  send_heartbeat(now);
}

inline void membership::adopt_suspicions(clock::time_point now) {
  if (now - change_began_ < 2 * policy_.suspicion_timeout) return;
  for (const auto& peer : record_.members) {
    if (peer.id == self_.id) {
      if (!suspects_.empty()) return;  // the others follow this one
      continue;
    }
    if (dead_.contains(peer.id) || suspects_.contains(peer.id)) continue;
    const auto& message = heartbeat_of(peer.id);
    if (!message.stopped || message.suspects.empty() || suspects_most(message)) continue;
    for (const auto id : std::vector<member_id>(message.suspects)) {
      suspect(now, id, name(peer.id) + " receives no heartbeat from it");
    }
    return;
  }
}

// Returns true if the sender suspects most live members. The members that it still receives are no group that could
// continue, and its suspicions are no reason to leave a member behind.
inline bool membership::suspects_most(const heartbeat& message) const {
  const auto lives = [this](member_id id) { return is_in(id) && !dead_.contains(id); };
  const auto living = static_cast<std::ptrdiff_t>(record_.members.size() - dead_.size());
  return 2 * std::ranges::count_if(message.suspects, lives) > living;
}

// ---- heartbeats ----

inline void membership::propose_record(const generation_record& next) {
  swapping_ = true;
  outlet_.swap(version_, next);
}

inline void membership::send_heartbeat(clock::time_point now) {
  last_sent_ = now;
  auto recipients = monitors_;
  const bool to_all = must_stop_ || own_.halt != 0 || own_.leaving;
  for (auto n = to_all ? rotating_recipients_.size() : std::min(detail::extra_recipients, rotating_recipients_.size());
       n > 0; --n)
    recipients.push_back(rotating_recipients_[turn_++ % rotating_recipients_.size()]);
  ++own_.number;
  own_.dead.assign(dead_.begin(), dead_.end());
  own_.suspects.clear();
  for (const auto& [id, why] : suspects_) own_.suspects.push_back(id);
  outlet_.send(own_, recipients);
}

// Returns an empty heartbeat when the peer's last heartbeat is from another generation.
inline const heartbeat& membership::heartbeat_of(member_id peer) const {
  static const heartbeat nothing;
  if (peer == self_.id) return own_;
  const auto found = views_.find(peer);
  return found != views_.end() && found->second.last.generation == record_.generation ? found->second.last : nothing;
}

inline bool membership::has_recent_heartbeat(clock::time_point now, member_id peer) const {
  const auto found = views_.find(peer);
  return found != views_.end() && now - found->second.received_at <= policy_.suspicion_timeout;
}

inline bool membership::may_leave() const {
  if (!own_.leaving) return false;
  bool all_leave = true;
  for (const auto& peer : record_.members) {
    if (dead_.contains(peer.id) || heartbeat_of(peer.id).leaving) continue;
    if (heartbeat_of(peer.id).stopped) return true;
    all_leave = false;
  }
  return all_leave;
}

inline std::string membership::reason_for(member_id peer) const {
  if (dead_.contains(peer)) return "its process ended (proof)";
  const auto found = suspects_.find(peer);
  return found == suspects_.end() ? "" : found->second + " (suspicion)";
}

inline std::string membership::name(member_id peer) const {
  const auto rank = ranks_.find(peer);
  return rank != ranks_.end() ? "rank " + std::to_string(rank->second) : "a joiner";
}

inline void membership::finish(exit_reason reason, const std::string& text) {
  if (ended_) return;
  ended_ = true;
  // If all have left together the record has no members, and its state sources are the members with the state of the
  // last step.
  if (record_.members.empty()) {
    const auto& last = record_.state_sources;
    return outlet_.end(reason, text, !last.empty() && last.front() == self_.id);
  }
  const auto first = std::ranges::find_if(
      record_.members, [this](const member& peer) { return !dead_.contains(peer.id) && !suspects_.contains(peer.id); });
  outlet_.end(reason, text, first != record_.members.end() && first->id == self_.id);
}

}}}  // namespace muster::v0::elastic
