#include "matcher.hpp"

#include <utility>

#include "../../core/copy.hpp"

namespace muster { inline namespace v0 { namespace detail {

namespace {

// Delivers bytes to a receive. A reduction may be a user's function. Its exception is a failure at this rank, which the
// next test throws, and not of the sender or the connection.
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

void matcher::close(matching_group& group) noexcept {
  const auto belongs_to_group = [&](const unexpected& m) { return m.head.generation == group.generation(); };
  std::erase(groups_, &group);
  closed_[closings_++ % closed_.size()] = group.generation();
  for (peer& sender : peers_) {
    if (sender.coming.unexpected_message != nullptr && belongs_to_group(*sender.coming.unexpected_message))
      sender.coming.unexpected_message = nullptr;
  }
  unexpected_.remove_if([&](const unexpected& m) {
    if (!belongs_to_group(m)) return false;
    consumed_credits(m.source) += m.credit_owed;
    try {
      if (m.announced()) send_clearance(m.source, m.head.number, nullptr);
    } catch (const std::bad_alloc&) {  // the sender waits until its deadline
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

void matcher::post(request& r) {
  matching_group& group = *progress_of(r).group;
  ++(r.peer == any_source ? awaited_from_any_ : peers_[static_cast<std::size_t>(group.peer(r.peer))].awaited);
  for (auto at = unexpected_.begin(); at != unexpected_.end(); ++at) {
    unexpected& m = *at;
    if (m.receive != nullptr || m.head.generation != group.generation()) continue;
    if (!matches(r, group.member(m.source), m.head.tag)) continue;
    if (!accept(r, m.source, m.head)) return;
    if (m.announced()) {
      send_clearance(m.source, m.head.number, &r);
      unexpected_.erase(at);
    } else if (m.is_complete) {
      take(at, r);
    } else {
      m.receive = &r;
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

// Gives the message of `head` to the receive. Returns false when the message does not fit; then the receive has failed.
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

// Clears an announced message to send. With a null `r` the message is dropped when it arrives.
void matcher::send_clearance(int source, std::uint64_t number, request* r) {
  peers_[static_cast<std::size_t>(source)].cleared[number] = r;
  clear_to_send_(source, number);
}

// Delivers a complete unexpected message to the receive, and finishes the receive.
void matcher::take(std::list<unexpected>::iterator message, request& r) {
  deliver_or_fail(r, message->bytes.data(), message->bytes.size());
  consumed_credits(message->source) += message->credit_owed;
  unexpected_.erase(message);
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
      if (m.receive != &r) continue;
      request* const next = take_posted(group, m.source, m.head.tag);  // later messages must not overtake this message
      m.receive = next != nullptr && accept(*next, m.source, m.head) ? next : nullptr;
    }
    peer& sender = peers_[static_cast<std::size_t>(group.peer(r.source))];
    if (sender.coming.receive == &r) sender.coming.receive = nullptr;
    for (auto& entry : sender.cleared) {
      if (entry.second == &r) entry.second = nullptr;
    }
  }
  stop_waiting(r);
  end(r);
}

std::byte* matcher::inbound_target::place(std::uint64_t offset) const noexcept {
  if (receive != nullptr) return receive->combine != nullptr ? nullptr : receive->data + offset;
  return unexpected_message != nullptr ? unexpected_message->bytes.data() + offset : nullptr;
}

void matcher::inbound_target::put(std::uint64_t offset, std::span<const std::byte> bytes) const {
  if (receive != nullptr) {
    deliver_or_fail(*receive, bytes.data(), bytes.size(), offset);
  } else if (unexpected_message != nullptr) {
    copy_bytes(unexpected_message->bytes.data() + offset, bytes.data(), bytes.size());
  }
}

bool matcher::match(int source, const envelope& head, bool must_pass, inbound_target& target) {
  const bool announced = head.kind == message_kind::rts;
  target = {};
  matching_group* const group = find(head.generation);
  bool is_dropped = group != nullptr ? group->member(source) < 0 : is_closed(head.generation);
  request* const r = group != nullptr ? take_posted(*group, source, head.tag) : nullptr;
  if (r != nullptr && accept(*r, source, head)) {
    if (announced) {
      send_clearance(source, head.number, r);
    } else {
      target.receive = r;
    }
    return true;
  }
  // the message does not fit: a tagged message stays for the next receive, a collective's message is dropped
  if (r != nullptr) {
    is_dropped = head.tag == 0;
    must_pass = true;
  }
  if (is_dropped) {
    if (announced) send_clearance(source, head.number, nullptr);
    return true;
  }
  if (!must_pass && !awaits(source)) return false;
  std::vector<std::byte> bytes(announced ? 0 : head.total);
  unexpected_.push_back({.source = source, .head = head, .bytes = std::move(bytes)});
  if (!announced) target.unexpected_message = &unexpected_.back();
  return true;
}

const char* matcher::match_body(int source, const envelope& head, inbound_target& target) {
  auto& cleared = peers_[static_cast<std::size_t>(source)].cleared;
  const auto found = cleared.find(head.number);
  if (found == cleared.end()) return "it sent data without a clear-to-send";
  request* const r = found->second;
  if (r != nullptr && r->received != head.total) return "it sent data of another size than its request-to-send";
  cleared.erase(found);
  target = {.receive = r, .unexpected_message = nullptr};
  return nullptr;
}

void matcher::on_complete(inbound_target& target) {
  if (request* const r = std::exchange(target.receive, nullptr)) return finish_receive(*r);
  unexpected* const m = std::exchange(target.unexpected_message, nullptr);
  if (m == nullptr) return;
  m->is_complete = true;
  if (m->receive == nullptr) return;
  take(std::find_if(unexpected_.begin(), unexpected_.end(), [&](const unexpected& message) { return &message == m; }),
       *m->receive);
}

void matcher::deliver_own(int self, const envelope& head, const request& sent) {
  inbound_target target;
  (void)match(self, head, true, target);
  target.put(0, {sent.data, sent.bytes});
  on_complete(target);
}

// Finishes a receive from any source whose sender was lost in the middle of the message. Other receives wait for the
// notification of their group.
void matcher::finish_without_data(request* r) noexcept {
  if (r == nullptr || r->peer != any_source) return;
  r->received = 0;
  finish_receive(*r);
}

void matcher::on_peer_lost(int source) noexcept {
  peer& sender = peers_[static_cast<std::size_t>(source)];
  finish_without_data(std::exchange(sender.coming, {}).receive);
  for (const auto& entry : sender.cleared) finish_without_data(entry.second);
  sender.cleared.clear();
  unexpected_.remove_if([&](unexpected& m) {
    if (m.source != source) return false;
    m.credit_owed = 0;  // a new connection starts with new credit
    if (m.is_complete) return false;
    finish_without_data(m.receive);
    return true;
  });
  sender.credit_taken = 0;
}

bool matcher::is_gone(int source, std::uint64_t generation) const noexcept {
  const matching_group* const group = find(generation);
  return group != nullptr && group->has_ended(group->member(source));
}

void matcher::drop_unexpected_of(int source, std::uint64_t generation) noexcept {
  unexpected_.remove_if([&](const unexpected& m) { return m.source == source && m.head.generation == generation; });
}

}}}  // namespace muster::v0::detail
