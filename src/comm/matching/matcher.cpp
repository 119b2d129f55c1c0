#include "matcher.hpp"

#include <utility>

#include "../../core/copy.hpp"

namespace muster { inline namespace v0 { namespace detail {

namespace {

// A reduction may be the user's. What it throws is a failure of this rank's, thrown by its next test, and neither the
// sender's nor the connection's.
void deliver_or_fail(request& r, const std::byte* incoming, std::size_t bytes, std::uint64_t offset = 0) noexcept {
  matching_group& group = *progress_of(r).group;
  if (group.failure && r.combine != nullptr) return;
  try {
    deliver(r, incoming, bytes, offset);
  } catch (...) {
    group.failure = std::current_exception();
    ++group.finished;
    group.wake();
  }
}

}  // namespace

void finish(request& r) noexcept {
  matching_group& group = *progress_of(r).group;
  end(r);
  ++group.finished;
  group.wake();
}

matcher::matcher(int peers, std::function<void(int peer, std::uint64_t number)> clear_to_send)
    : clear_to_send_(std::move(clear_to_send)), peers_(static_cast<std::size_t>(peers)) {}

// ---- groups ----

void matcher::close(matching_group& group) noexcept {
  const auto is_its = [&](const unexpected& m) { return m.head.generation == group.generation(); };
  std::erase(groups_, &group);
  closed_[closings_++ % closed_.size()] = group.generation();
  for (peer& one : peers_) {
    if (one.coming.aside != nullptr && is_its(*one.coming.aside)) one.coming.aside = nullptr;
  }
  unexpected_.remove_if([&](const unexpected& m) {
    if (!is_its(m)) return false;
    taken_of(m.source) += m.owed;
    try {
      if (m.announced()) clear(m.source, m.head.number, nullptr);
    } catch (const std::bad_alloc&) {  // its sender waits until its deadline
    }
    return true;
  });
}

matching_group* matcher::find(std::uint64_t generation) const noexcept {
  for (matching_group* const group : groups_) {
    if (group->generation() == generation) return group;
  }
  return nullptr;
}

// ---- receives ----

void matcher::post(request& r) {
  matching_group& group = *progress_of(r).group;
  ++(r.peer == any_source ? awaited_from_any_ : peers_[static_cast<std::size_t>(group.peer(r.peer))].awaited);
  for (auto at = unexpected_.begin(); at != unexpected_.end(); ++at) {
    unexpected& m = *at;
    if (m.to != nullptr || m.head.generation != group.generation()) continue;
    if (!matches(r, group.member(m.source), m.head.tag)) continue;
    if (!accept(r, m.source, m.head)) return;
    if (m.announced()) {
      clear(m.source, m.head.number, &r);
      unexpected_.erase(at);
    } else if (m.has_come) {
      take(at, r);
    } else {
      m.to = &r;
    }
    return;
  }
  group.posted.push(r);
}

request* matcher::take_posted(matching_group& group, int source, std::uint32_t tag) noexcept {
  const int member = group.member(source);
  if (member < 0) return nullptr;
  return group.posted.take_first([&](const request& r) { return matches(r, member, tag); });
}

// The receive is to get the message of `head`; false when that does not fit it, and then it is over.
bool matcher::accept(request& r, int source, const envelope& head) noexcept {
  matching_group& group = *progress_of(r).group;
  r.source = group.member(source);
  r.received = head.total;
  r.state = message_progress::moving;
  try {
    check_arrival(r, r.source, head.signature, head.total);
    return true;
  } catch (...) {
    if (!group.failure) group.failure = std::current_exception();
    finish_receive(r);
    return false;
  }
}

// Null: the message comes and is dropped.
void matcher::clear(int source, std::uint64_t number, request* r) {
  peers_[static_cast<std::size_t>(source)].cleared[number] = r;
  clear_to_send_(source, number);
}

void matcher::take(std::list<unexpected>::iterator whole, request& r) {
  deliver_or_fail(r, whole->bytes.data(), whole->bytes.size());
  taken_of(whole->source) += whole->owed;
  unexpected_.erase(whole);
  finish_receive(r);
}

void matcher::stop_waiting(request& r) noexcept {
  const matching_group& group = *progress_of(r).group;
  --(r.peer == any_source ? awaited_from_any_ : peers_[static_cast<std::size_t>(group.peer(r.peer))].awaited);
}

void matcher::finish_receive(request& r) noexcept {
  stop_waiting(r);
  finish(r);
}

void matcher::cancel(request& r) noexcept {
  matching_group& group = *progress_of(r).group;
  if (r.state == message_progress::waiting) {
    group.posted.remove(r);
  } else {
    for (unexpected& m : unexpected_) {
      if (m.to != &r) continue;
      request* const next = take_posted(group, m.source, m.head.tag);  // of what is behind it none overtakes it
      m.to = next != nullptr && accept(*next, m.source, m.head) ? next : nullptr;
    }
    peer& from = peers_[static_cast<std::size_t>(group.peer(r.source))];
    if (from.coming.to == &r) from.coming.to = nullptr;
    for (auto& entry : from.cleared) {
      if (entry.second == &r) entry.second = nullptr;
    }
  }
  stop_waiting(r);
  end(r);
}

// ---- messages ----

std::byte* matcher::arrival::place(std::uint64_t offset) const noexcept {
  if (to != nullptr) return to->combine != nullptr ? nullptr : to->data + offset;
  return aside != nullptr ? aside->bytes.data() + offset : nullptr;
}

void matcher::arrival::put(std::uint64_t offset, std::span<const std::byte> bytes) const {
  if (to != nullptr) {
    deliver_or_fail(*to, bytes.data(), bytes.size(), offset);
  } else if (aside != nullptr) {
    copy_bytes(aside->bytes.data() + offset, bytes.data(), bytes.size());
  }
}

bool matcher::match(int source, const envelope& head, bool must_pass, arrival& to) {
  const bool announced = head.kind == message_kind::rts;
  to = {};
  matching_group* const group = find(head.generation);
  bool goes_nowhere = group != nullptr ? group->member(source) < 0 : is_closed(head.generation);
  request* const r = group != nullptr ? take_posted(*group, source, head.tag) : nullptr;
  if (r != nullptr && accept(*r, source, head)) {
    if (announced) {
      clear(source, head.number, r);
    } else {
      to.to = r;
    }
    return true;
  }
  if (r != nullptr) {  // it does not fit: a tagged one is for the next receive, a collective's for none
    goes_nowhere = head.tag == 0;
    must_pass = true;
  }
  if (goes_nowhere) {
    if (announced) clear(source, head.number, nullptr);
    return true;
  }
  if (!must_pass && !awaits(source)) return false;
  std::vector<std::byte> bytes(announced ? 0 : head.total);
  unexpected_.push_back({.source = source, .head = head, .bytes = std::move(bytes)});
  if (!announced) to.aside = &unexpected_.back();
  return true;
}

const char* matcher::match_body(int source, const envelope& head, arrival& to) {
  auto& cleared = peers_[static_cast<std::size_t>(source)].cleared;
  const auto found = cleared.find(head.number);
  if (found == cleared.end()) return "it sent data without a clear-to-send";
  request* const r = found->second;
  if (r != nullptr && r->received != head.total) return "it sent data of another size than its request-to-send";
  cleared.erase(found);
  to = {.to = r, .aside = nullptr};
  return nullptr;
}

void matcher::came(arrival& to) {
  if (request* const r = std::exchange(to.to, nullptr)) return finish_receive(*r);
  unexpected* const m = std::exchange(to.aside, nullptr);
  if (m == nullptr) return;
  m->has_come = true;
  if (m->to == nullptr) return;
  take(std::find_if(unexpected_.begin(), unexpected_.end(), [&](const unexpected& one) { return &one == m; }), *m->to);
}

void matcher::deliver_own(int self, const envelope& head, const request& sent) {
  arrival to;
  (void)match(self, head, true, to);
  to.put(0, {sent.data, sent.bytes});
  came(to);
}

// ---- peers that are lost ----

// One of a rank waits for what that rank never says, which its group is told.
void matcher::break_off(request* r) noexcept {
  if (r == nullptr || r->peer != any_source) return;
  r->received = 0;
  finish_receive(*r);
}

void matcher::lose(int source) noexcept {
  peer& from = peers_[static_cast<std::size_t>(source)];
  break_off(std::exchange(from.coming, {}).to);
  for (const auto& entry : from.cleared) break_off(entry.second);
  from.cleared.clear();
  unexpected_.remove_if([&](unexpected& m) {
    if (m.source != source) return false;
    m.owed = 0;  // the credit of a new connection is new
    if (m.has_come) return false;
    break_off(m.to);
    return true;
  });
  from.taken = 0;
}

bool matcher::is_gone(int source, std::uint64_t generation) const noexcept {
  const matching_group* const group = find(generation);
  return group != nullptr && group->has_lost(group->member(source));
}

void matcher::forget(int source, std::uint64_t generation) noexcept {
  unexpected_.remove_if([&](const unexpected& m) { return m.source == source && m.head.generation == generation; });
}

}}}  // namespace muster::v0::detail
