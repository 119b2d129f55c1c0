// Views: who takes part, who is out, and how the next one is made.
#include "replica.hpp"

#include <algorithm>

namespace muster::inline v0::detail {
namespace {

using kind = replica_message::kind;

}  // namespace

// ---- promises ----

void store_replica::hear_prepare(time now, std::uint64_t from, const replica_message& said) {
  if (view_.in_force && !view_.has(from)) return send(from, {.what = kind::see, .view = view_});
  if (said.number < promised_) return send(from, {.what = kind::refuse, .number = promised_, .view = view_});
  if (proposal_) give_up(now);
  promised_ = said.number;
  // It may wait for one that is silent: who came in between would only wait for the same.
  yields_until_ = now + policy_.silence_here + policy_.silence;
  yields_to_ = from;
  replica_message promise{
      .what = kind::promise, .number = said.number, .index = index_, .view = view_, .dead = dead_ones()};
  if (std::pair(view_.number, index_) > std::pair(said.view.number, said.index)) promise.text = table_.save();
  send(from, std::move(promise));
}

void store_replica::hear_promise(std::uint64_t from, const replica_message& said) {
  if (!proposal_ || said.number != proposal_->number) return;
  dead_.insert(said.dead.begin(), said.dead.end());
  dead_.erase(self_.id);
  auto& its = proposal_->promised[from];
  its = {said.view.number, said.index};
  if (its > proposal_->furthest && said.text) {
    proposal_->furthest = its;
    proposal_->contents = said.text;
  }
  auto& present = proposal_->present;
  if (said.view.number > present.number) present = said.view;
  if (said.view.number == present.number) present.in_force = present.in_force || said.view.in_force;
  if (!present.has(self_.id)) learn(present);
}

void store_replica::hear_refuse(time now, const replica_message& said) {
  learn(said.view);
  if (said.number <= promised_) return;
  if (proposal_) give_up(now);
  if (view_.number.by == self_.id && promised_ == view_.number) {
    promised_ = said.number;  // somebody has begun a view, and may come back to it
    yields_until_ = now + policy_.beat;
    yields_to_ = 0;
  }
}

void store_replica::hear_install(time now, std::uint64_t from, const replica_message& said) {
  if (said.view.number < promised_) return send(from, {.what = kind::refuse, .number = promised_, .view = view_});
  if (said.view.number == view_.number || !said.view.has(self_.id) || said.view.number.by != from) return;
  if (said.text) {
    if (!table_.load(*said.text, now)) return;  // no member says that: it is left behind for its silence
    index_ = said.index;
  } else if (index_ != said.index) {
    return;
  }
  promised_ = said.view.number;
  view_ = said.view;
  dead_.insert(said.dead.begin(), said.dead.end());
  proposal_.reset();
  held_.clear();
  take_up(now);
  send(from, {.what = kind::installed, .number = view_.number, .index = index_});
  carry_on_calls(now);
}

// ---- who is out, and who makes the next view ----

bool store_replica::sees_end_of(const replica_member& one) const {
  return one.host != 0 && one.host == self_.host && !beyond_reach_.contains(one.id);
}

bool store_replica::is_out(const replica_member& one) const {
  if (dead_.contains(one.id)) return true;
  return !sees_end_of(one) && (silent_.contains(one.id) || (proposal_ && proposal_->unreachable.contains(one.id)));
}

bool store_replica::is_suspect(const replica_member& one) const {
  return dead_.contains(one.id) || silent_.contains(one.id) || broken_.contains(one.id);
}

clock::duration store_replica::patience_with(const replica_member& one) const {
  return sees_end_of(one) ? policy_.silence_here : policy_.silence;
}

void store_replica::suspect_silent(const replica_member& one) {
  silent_.insert(one.id);
  if (sees_end_of(one)) actions_.emplace_back(replica_act::kill{one});
}

void store_replica::look_for_silence(time now) {
  const bool all = view_.number.by == self_.id;
  for (const auto& one : view_.members) {
    if (one.id == self_.id || dead_.contains(one.id) || !(all || one.id == view_.number.by)) continue;
    if (now - heard_[one.id] > patience_with(one)) suspect_silent(one);
  }
}

// Who is to make the next view and does not may know better, or be gone: the next one asks it.
void store_replica::look_at_coordinator(time now) {
  const auto who = coordinator();
  if (!needs_change() || proposal_ || who == self_.id || who == view_.number.by) {
    waits_for_ = 0;
    return;
  }
  if (std::exchange(waits_for_, who) != who) waits_since_ = now;
  for (const auto& one : view_.members) {
    if (one.id == who && now - waits_since_ > policy_.silence) passed_over_.insert(who);
  }
}

std::uint64_t store_replica::coordinator() const {
  const replica_member* first = nullptr;
  for (const auto& one : view_.members) {
    if (is_suspect(one) || passed_over_.contains(one.id)) continue;
    if (one.id == view_.number.by) return one.id;
    if (first == nullptr) first = &one;
  }
  return first != nullptr ? first->id : self_.id;
}

bool store_replica::needs_change() const {
  if (view_.number.by == self_.id && (promised_ != view_.number || !joiners_.empty())) return true;
  return has_suspects();
}

bool store_replica::has_suspects() const {
  return std::any_of(view_.members.begin(), view_.members.end(), [this](const auto& one) { return is_suspect(one); });
}

void store_replica::look(time now) {
  if (ended_ || left_) return;
  if (!view_) {
    const auto here = static_cast<int>(joiners_.size()) + 1;
    const bool enough =
        (here >= found_of_ && here > 1) || (2 * here > found_of_ && now - found_since_ > 2 * policy_.silence);
    if (found_of_ == 0 || !enough) return;
    promised_ = {rounds_seen_ + 1, self_.id};
    view_ = {self_.id, promised_, {self_}, {}, true};
    take_up(now);
    carry_on_calls(now);
  }
  if (proposal_) {
    const auto lists = in_question();
    const auto is_missing = [this](const replica_member& one) {
      return one.id != self_.id && !proposal_->promised.contains(one.id) && !is_out(one);
    };
    for (const auto& members : lists) {
      if (std::any_of(members.begin(), members.end(), is_missing)) return ask_for_promises(now);
    }
    // Nobody of this host who could see it end is left behind, not even of a view that came to nothing.
    const auto& present = proposal_->present.members;
    if (std::any_of(present.begin(), present.end(),
                    [&](const auto& one) { return sees_end_of(one) && is_missing(one); }))
      return ask_for_promises(now);
    if (std::all_of(lists.begin(), lists.end(), [&](const auto& members) { return agrees(members); })) conclude(now);
    return;
  }
  if (!is_member() || now < yields_until_ || !needs_change() || coordinator() != self_.id) return;
  if (leads() && !view_.in_force && !has_suspects()) return;  // it comes: who wants to join waits for it
  propose(now);
}

// ---- a new view ----

void store_replica::propose(time now) {
  const replica_ballot number{std::max(rounds_seen_, promised_.round) + 1, self_.id};
  rounds_seen_ = number.round;
  promised_ = number;
  proposal_.emplace();
  proposal_->number = number;
  proposal_->present = view_;
  proposal_->furthest = {view_.number, index_};
  proposal_->promised[self_.id] = proposal_->furthest;
  look(now);
}

// Of a view that this member made itself it knows that it never came into force, and never will.
std::vector<std::vector<replica_member>> store_replica::in_question() const {
  const auto& present = proposal_->present;
  if (present.in_force) return {present.members};
  auto all = present.before;
  if (present.number.by != self_.id) all.push_back(present.members);
  return all;
}

void store_replica::ask_for_promises(time now) {
  auto asked = in_question();
  asked.push_back(proposal_->present.members);
  for (const auto& members : asked) {
    for (const auto& one : members) {
      if (one.id == self_.id || dead_.contains(one.id) || proposal_->promised.contains(one.id)) continue;
      const auto before = proposal_->asked.find(one.id);
      if (before == proposal_->asked.end()) heard_[one.id] = std::max(heard_[one.id], now);
      if (before != proposal_->asked.end()) {
        if (now - heard_[one.id] > patience_with(one) && !silent_.contains(one.id)) suspect_silent(one);
        if (now - before->second < policy_.silence) continue;
      }
      proposal_->asked[one.id] = now;
      replica_message prepare{.what = kind::prepare, .number = proposal_->number, .index = index_};
      prepare.view.number = view_.number;
      send(one, std::move(prepare));
    }
  }
}

// More than half of all, whoever lives; or all that live, where somebody does.
bool store_replica::agrees(const std::vector<replica_member>& members) const {
  std::size_t dead = 0;
  std::size_t agreeing = 0;
  for (const auto& one : members) {
    if (dead_.contains(one.id)) {
      ++dead;
    } else if (proposal_->promised.contains(one.id)) {
      ++agreeing;
    }
  }
  if (agreeing == 0) return false;
  if (agreeing + dead == members.size()) return true;
  if (2 * agreeing == members.size())
    return !dead_.contains(members.front().id) && proposal_->promised.contains(members.front().id);
  return 2 * agreeing > members.size();
}

void store_replica::conclude(time now) {
  const auto lists = in_question();
  auto made = std::move(*proposal_);
  proposal_.reset();
  if (made.contents) {
    if (!table_.load(*made.contents, now)) return;
    index_ = made.furthest.index;
    held_.clear();
  }
  replica_view next{view_.store, made.number, {}, lists, false};
  const auto add = [&](const std::vector<replica_member>& members) {
    for (const auto& one : members) {
      if (made.promised.contains(one.id) && !dead_.contains(one.id) && !next.has(one.id)) next.members.push_back(one);
    }
  };
  for (const auto& members : lists) add(members);
  add(made.present.members);
  for (const auto& [id, one] : joiners_) {
    if (!next.has(id) && !dead_.contains(id)) next.members.push_back(one);
  }
  joiners_.clear();
  view_ = std::move(next);
  take_up(now);
  std::optional<std::string> contents;
  for (const auto& one : view_.members) {
    if (one.id == self_.id) continue;
    replica_message install{
        .what = kind::install, .number = view_.number, .index = index_, .view = view_, .dead = dead_ones()};
    const auto its = made.promised.find(one.id);
    if (its == made.promised.end() || its->second != made.furthest) {
      if (!contents) contents = table_.save();
      install.text = contents;
    }
    send(one, std::move(install));
  }
  come_into_force(now);
}

// The older come first: none of several that begin at the same time would ever be done.
void store_replica::give_up(time now) {
  proposal_.reset();
  std::ptrdiff_t age = 0;
  while (age < std::ssize(view_.members) && view_.members[static_cast<std::size_t>(age)].id != self_.id) ++age;
  yields_until_ = now + (1 + age) * policy_.beat;
  yields_to_ = 0;
}

// All that a new view makes new, at each of its members.
void store_replica::take_up(time now) {
  made_.clear();
  early_calls_.clear();
  asks_.reset();
  found_of_ = 0;
  waits_for_ = 0;
  passed_over_.clear();
  broken_.clear();
  silent_.clear();
  for (const auto& one : view_.members) heard_[one.id] = now;
}

void store_replica::come_into_force(time now) {
  for (const auto& one : view_.members) {
    if (one.id != self_.id && !made_.contains(one.id)) return;
  }
  for (const auto& members : view_.before) {
    for (const auto& one : members) {
      if (!view_.has(one.id) && !dead_.contains(one.id)) send(one, {.what = kind::see, .view = view_});
    }
  }
  view_.in_force = true;
  view_.before.clear();
  say_beat();  // the others, too, are to know that it is
  table_.renew(now);
  for (const auto whose : table_.clients()) {
    if (view_.has(whose)) continue;
    using what = replica_table::change::kind;
    change(now, {.what = dead_.contains(whose) ? what::leave : what::forget, .whose = whose});
  }
  for (const auto& [from, said] : std::exchange(early_calls_, {}))
    change(now, {.whose = from, .done = said.index, .request = *said.text});
  carry_on_calls(now);
  release();
  forget_others();
}

// Of those who are in no view that counts nothing need be known any more.
void store_replica::forget_others() {
  const auto is_other = [this](std::uint64_t id) { return !view_.has(id); };
  std::erase_if(dead_, is_other);
  std::erase_if(beyond_reach_, is_other);
  std::erase_if(heard_, [&](const auto& one) { return is_other(one.first) && !joiners_.contains(one.first); });
}

}  // namespace muster::inline v0::detail
