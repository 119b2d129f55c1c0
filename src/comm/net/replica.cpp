#include "replica.hpp"

#include <algorithm>

namespace muster::inline v0::detail {
namespace {

using kind = replica_message::kind;

constexpr std::size_t length_bytes = 4;  // of a frame, before its body

template <class T>
std::string body_of(const T& said) {
  std::string frame;
  append_frame(frame, said);
  return frame.substr(length_bytes);
}

}  // namespace

store_replica::store_replica(replica_member self, const replica_policy& policy, time now)
    : self_(std::move(self)),
      policy_(policy),
      table_([this](std::uint64_t to, const store_reply& said) {
        if (leads()) held_.push_back({index_, to, body_of(said)});
      }),
      ticked_(now) {}

// ---- what happens ----

void store_replica::meet(const replica_member& whom) {
  if (ended_ || left_ || whom.id == self_.id) return;
  if (!view_) {
    send(whom, {.what = kind::join, .member = self_});
  } else if (!view_.has(whom.id)) {
    send(whom, {.what = kind::see, .view = view_});
  }
}

void store_replica::hear(time now, std::uint64_t from, const replica_message& said) {
  if (ended_ || left_ || from == self_.id) return;
  if (view_ && said.view.store != 0 && said.view.store != view_.store) return;
  heard_[from] = now;
  silent_.erase(from);
  rounds_seen_ = std::max({rounds_seen_, said.number.round, said.view.number.round});
  switch (said.what) {
    case kind::join:
      hear_join(from, said);
      break;
    case kind::see:
      learn(said.view);
      break;
    case kind::prepare:
      hear_prepare(now, from, said);
      break;
    case kind::promise:
      hear_promise(from, said);
      break;
    case kind::refuse:
      hear_refuse(now, said);
      break;
    case kind::install:
      hear_install(now, from, said);
      break;
    case kind::installed:
    case kind::done:
      if (!leads() || said.number != view_.number) break;
      made_[from] = std::max(made_[from], said.index);
      if (!view_.in_force) come_into_force(now);
      release();
      break;
    case kind::change:
      hear_change(now, from, said);
      break;
    case kind::beat:
      hear_beat(from, said);
      break;
    case kind::echo:
      if (said.number == view_.number) dead_.insert(said.dead.begin(), said.dead.end());
      break;
    case kind::call:
      if (!leads() || !view_.has(from) || !said.text) break;  // it asks again when it knows who leads
      if (view_.in_force) {
        change(now, {.whose = from, .done = said.index, .request = *said.text});
      } else {
        early_calls_.emplace_back(from, said);
      }
      break;
    case kind::reply:
      if (said.text) deliver(*said.text);
      break;
    case kind::gone:
      dead_.insert(from);
      joiners_.erase(from);
      break;
    case kind::hello:  // the connection's business
      break;
  }
  look(now);
}

void store_replica::lost(time now, std::uint64_t who) {
  joiners_.erase(who);
  if (asks_ && asks_->id == who) asks_.reset();
  if (ended_ || left_) return;
  if (proposal_ && proposal_->asked.erase(who) != 0) {  // it is asked once more, over a new connection
    if (!proposal_->lost.insert(who).second) proposal_->unreachable.insert(who);
  } else {
    broken_.insert(who);
  }
  look(now);
}

void store_replica::prove_dead(time now, std::uint64_t who) {
  joiners_.erase(who);
  if (asks_ && asks_->id == who) asks_.reset();
  if (who == self_.id || !dead_.insert(who).second || ended_ || left_) return;
  if (is_member() && !leads()) send(coordinator(), {.what = kind::echo, .number = view_.number, .dead = dead_ones()});
  look(now);
}

void store_replica::tick(time now) {
  if (ended_ || left_) return;
  const auto gap = now - ticked_;
  ticked_ = now;
  if (gap > 2 * policy_.beat) {  // this process stood still: what the others said meanwhile is not read yet
    for (auto& [id, when] : heard_) when += gap;
    waits_since_ += gap;
    table_.forgive(gap);
  }
  if (now - said_ >= policy_.beat) {
    said_ = now;
    if (asks_) send(*asks_, {.what = kind::join, .member = self_});
    if (leads()) say_beat();
  }
  if (leads() && view_.in_force) {
    for (const auto& one : table_.due(now)) {
      change(now, {.whose = one.holder, .request = body_of(store_request{.what = store_call::end, .number = one.id})});
    }
  }
  look_for_silence(now);
  look_at_coordinator(now);
  if (proposal_) ask_for_promises(now);
  look(now);
}

void store_replica::say_beat() {
  replica_message beat{.what = kind::beat, .number = view_.number, .dead = dead_ones()};
  beat.view.in_force = view_.in_force;
  for (const auto& one : view_.members) send(one, beat);
}

// ---- what this process wants ----

void store_replica::call(time now, const store_request& asked) {
  if (ended_ || left_) return;
  if (asked.what == store_call::cancel) {
    calls_.erase(asked.id);
  } else {
    calls_[asked.id] = body_of(asked);
  }
  if (!view_) return;
  const auto done = calls_.empty() ? asked.id : calls_.begin()->first;
  if (!leads()) {
    send(view_.number.by, {.what = kind::call, .index = done, .text = body_of(asked)});
  } else if (view_.in_force) {
    change(now, {.whose = self_.id, .done = done, .request = body_of(asked)});
  }
}

void store_replica::leave() {
  if (ended_ || left_) return;
  if (is_member()) {
    const bool to_all = leads() || coordinator() != view_.number.by;
    for (const auto& one : view_.members) {
      if (to_all || one.id == coordinator()) send(one, {.what = kind::gone});
    }
  }
  left_ = true;
}

// ---- words of others ----

void store_replica::hear_join(std::uint64_t from, const replica_message& said) {
  if (said.member.id != from) return;
  if (!view_) {
    if (found_of_ > 0) joiners_[from] = said.member;
  } else if (view_.number.by != self_.id) {
    send(said.member, {.what = kind::see, .view = view_});
  } else if (!view_.has(from)) {
    joiners_[from] = said.member;
  }
}

void store_replica::learn(const replica_view& other) {
  if (!other) return;
  if (view_) {
    if (other.number == view_.number) view_.in_force = view_.in_force || other.in_force;
    if (other.number > view_.number && other.in_force && !other.has(self_.id)) {
      ended_ = true;
      actions_.emplace_back(replica_act::end{});
    }
    return;
  }
  found_of_ = 0;
  joiners_.clear();
  if (other.has(self_.id)) return;  // the rest comes
  for (const auto& one : other.members) {
    if (one.id != other.number.by) continue;
    const bool is_new = !asks_ || asks_->id != one.id;
    asks_ = one;
    if (is_new) send(one, {.what = kind::join, .member = self_});
  }
}

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
  if (present.in_force && !present.has(self_.id)) learn(present);
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
  end_those_left_behind();
  send(from, {.what = kind::installed, .number = view_.number, .index = index_});
  carry_on_calls(now);
}

// Whoever lives on this host and is left behind would see this process die, and could take that for a proof.
void store_replica::end_those_left_behind() {
  for (const auto& members : view_.before) {
    for (const auto& one : members) {
      if (!view_.has(one.id) && !dead_.contains(one.id) && sees_end_of(one))
        actions_.emplace_back(replica_act::kill{one});
    }
  }
}

void store_replica::hear_change(time now, std::uint64_t from, const replica_message& said) {
  if (said.number != view_.number || promised_ != view_.number) {
    if (said.number < promised_) send(from, {.what = kind::refuse, .number = promised_, .view = view_});
    return;
  }
  if (leads() || said.index > index_ + 1 || !said.text) return;  // something is missing: the connection will show it
  view_.in_force = true;
  if (said.index == index_ + 1) {
    const auto made = replica_table::change::decode(*said.text);
    if (!made) return;
    ++index_;
    table_.apply(*made, now);
  }
  send(from, {.what = kind::done, .number = view_.number, .index = index_});
}

void store_replica::hear_beat(std::uint64_t from, const replica_message& said) {
  if (said.number < view_.number) return send(from, {.what = kind::see, .view = view_});
  if (said.number < promised_) return send(from, {.what = kind::refuse, .number = promised_, .view = view_});
  if (said.number != view_.number) return;
  if (said.view.in_force && !std::exchange(view_.in_force, true)) forget_others();
  dead_.insert(said.dead.begin(), said.dead.end());
  dead_.erase(self_.id);
  send(from, {.what = kind::echo, .number = view_.number, .dead = dead_ones()});
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
  return std::any_of(view_.members.begin(), view_.members.end(), [this](const auto& one) { return is_suspect(one); });
}

void store_replica::look(time now) {
  if (ended_ || left_) return;
  if (!view_) {
    const auto here = static_cast<int>(joiners_.size()) + 1;
    const bool enough = here >= found_of_ || (2 * here > found_of_ && now - found_since_ > 2 * policy_.silence);
    if (found_of_ == 0 || !enough) return;
    promised_ = {rounds_seen_ + 1, self_.id};
    view_ = {self_.id, promised_, {self_}, {}, true};
    take_up(now);
    carry_on_calls(now);
  }
  if (proposal_) {
    const auto lists = in_question();
    for (const auto& members : lists) {
      for (const auto& one : members) {
        if (one.id != self_.id && !proposal_->promised.contains(one.id) && !is_out(one)) return ask_for_promises(now);
      }
    }
    if (std::all_of(lists.begin(), lists.end(), [&](const auto& members) { return agrees(members); })) conclude(now);
    return;
  }
  const bool yields = now < yields_until_ && !dead_.contains(yields_to_) && !broken_.contains(yields_to_);
  if (!is_member() || yields || !needs_change() || coordinator() != self_.id) return;
  const bool is_coming = leads() && !view_.in_force;  // a view that those who want to join can wait for
  if (is_coming &&
      std::none_of(view_.members.begin(), view_.members.end(), [this](const auto& one) { return is_suspect(one); }))
    return;
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
      if (before == proposal_->asked.end()) proposal_->asked_members.push_back(one);
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
  if (agreeing > 0 && agreeing + dead == members.size()) return true;
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
  add(made.asked_members);  // a view that came to nothing may have had them
  add({self_});
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

void store_replica::give_up(time now) {
  proposal_.reset();
  yields_until_ = now + policy_.beat;
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

// ---- requests ----

void store_replica::change(time now, const replica_table::change& made) {
  ++index_;
  table_.apply(made, now);
  replica_message said{.what = kind::change, .number = view_.number, .index = index_, .text = made.encode()};
  for (const auto& one : view_.members) send(one, said);
  release();
}

// Answers are given when every member has what they say.
void store_replica::release() {
  if (!leads() || !view_.in_force) return;
  auto made = index_;
  for (const auto& [id, its] : made_) made = std::min(made, its);
  while (!held_.empty() && held_.front().index <= made) {
    auto reply = std::move(held_.front());
    held_.pop_front();
    if (reply.to == self_.id) {
      deliver(reply.body);
    } else if (view_.has(reply.to)) {
      send(reply.to, {.what = kind::reply, .text = std::move(reply.body)});
    }
  }
}

// Whoever answers now: what has no answer yet is asked once more, and done once.
void store_replica::carry_on_calls(time now) {
  if (calls_.empty()) return;
  const auto done = calls_.begin()->first;
  for (const auto& [id, body] : std::map(calls_)) {
    if (!leads()) {
      send(view_.number.by, {.what = kind::call, .index = done, .text = body});
    } else if (view_.in_force) {
      change(now, {.whose = self_.id, .done = done, .request = body});
    }
  }
}

void store_replica::deliver(const std::string& body) {
  const auto said = parse_reply(body);
  if (said && calls_.erase(said->id) != 0) actions_.emplace_back(replica_act::answer{body});
}

void store_replica::send(const replica_member& to, replica_message what) {
  what.view.store = view_.store;
  if (to.id != self_.id) actions_.emplace_back(replica_act::send{to, std::move(what)});
}

void store_replica::send(std::uint64_t to, replica_message what) {
  const auto found = std::find_if(view_.members.begin(), view_.members.end(),
                                  [to](const replica_member& one) { return one.id == to; });
  send(found != view_.members.end() ? *found : replica_member{to, 0, {}}, std::move(what));
}

}  // namespace muster::inline v0::detail
