#include "replica.hpp"

#include <algorithm>

namespace muster::inline v0::detail {
namespace {

using kind = replica_message::kind;

template <class T>
std::string body_of(const T& said) {
  std::string frame;
  append_frame(frame, said);
  return frame.substr(store_frame_head);
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
      if (from == yields_to_) yields_until_ = {};
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
  if (who == yields_to_) yields_until_ = {};
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
  if (who == yields_to_) yields_until_ = {};
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

// By that view, which is in force, or by the last before it that was: the first of those in question.
bool store_replica::leaves_out(const replica_view& other) const {
  if (other.has(self_.id)) return false;
  const auto has_self = [this](const std::vector<replica_member>& members) {
    return std::any_of(members.begin(), members.end(), [this](const auto& one) { return one.id == self_.id; });
  };
  return other.in_force || std::none_of(other.before.begin(), other.before.end(), has_self);
}

void store_replica::learn(const replica_view& other) {
  if (!other) return;
  if (view_) {
    if (other.number == view_.number) view_.in_force = view_.in_force || other.in_force;
    if (other.number > view_.number && leaves_out(other)) {
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

void store_replica::hear_change(time now, std::uint64_t from, const replica_message& said) {
  if (said.number == view_.number) know_in_force();
  if (said.number != view_.number || promised_ != view_.number) {
    if (said.number < promised_) send(from, {.what = kind::refuse, .number = promised_, .view = view_});
    return;
  }
  if (leads() || said.index > index_ + 1 || !said.text) return;  // something is missing: the connection will show it
  if (said.index == index_ + 1) {
    const auto made = replica_table::change::decode(*said.text);
    if (!made) return;
    ++index_;
    table_.apply(*made, now);
  }
  send(from, {.what = kind::done, .number = view_.number, .index = index_});
}

// Its leader says so, or acts so. That counts though somebody has begun the next.
void store_replica::know_in_force() {
  if (std::exchange(view_.in_force, true)) return;
  if (proposal_ && proposal_->present.number == view_.number) proposal_->present.in_force = true;
  forget_others();
}

void store_replica::hear_beat(std::uint64_t from, const replica_message& said) {
  if (said.number < view_.number) return send(from, {.what = kind::see, .view = view_});
  if (said.number == view_.number && said.view.in_force) know_in_force();
  if (said.number < promised_) return send(from, {.what = kind::refuse, .number = promised_, .view = view_});
  if (said.number != view_.number) return;
  dead_.insert(said.dead.begin(), said.dead.end());
  dead_.erase(self_.id);
  send(from, {.what = kind::echo, .number = view_.number, .dead = dead_ones()});
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
