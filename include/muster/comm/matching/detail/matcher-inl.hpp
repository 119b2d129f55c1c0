#pragma once

#include <muster/comm/matching/matcher.hpp>

#include <iterator>
#include <utility>

#include <muster/core/copy.hpp>

namespace muster { inline namespace v0 { namespace detail {

// Delivers bytes to a receive. A reduction may be a user's function. Its exception is a failure at this rank, which the
// next test throws, and not of the sender or the connection.
inline void deliver_or_fail(request& req, const std::byte* incoming, std::size_t bytes,
                            std::uint64_t offset = 0) noexcept {
  matching_group& group = *progress_of(req).group;
  if (group.failure && req.combine != nullptr) return;
  try {
    deliver(req, incoming, bytes, offset);
  } catch (...) {
    group.failure = std::current_exception();
    ++group.finished;
    group.wake();
  }
}

inline void finish(request& req) noexcept {
  matching_group& group = *progress_of(req).group;
  end(req);
  ++group.finished;
  group.wake();
}

inline matcher::matcher(int peers, std::function<void(int peer, std::uint64_t number)> clear_to_send)
    : clear_to_send_(std::move(clear_to_send)), peers_(static_cast<std::size_t>(peers)) {}

inline void matcher::close(matching_group& group) noexcept {
  const auto belongs_to_group = [&](const unexpected& m) { return m.head.group_id == group.group_id(); };
  std::erase(groups_, &group);
  closed_[closings_++ % closed_.size()] = group.group_id();
  for (peer& sender : peers_) {
    if (sender.arriving.unexpected_message != nullptr && belongs_to_group(*sender.arriving.unexpected_message))
      sender.arriving.unexpected_message = nullptr;
  }
  remove_unexpected_if([&](const unexpected& m) {
    if (!belongs_to_group(m)) return false;
    consumed_credits(m.source) += m.credit_owed;
    try {
      if (m.announced()) send_clearance(m.source, m.head.number, nullptr);
    } catch (const std::bad_alloc&) {  // the sender waits until its deadline
    }
    return true;
  });
}

inline matching_group* matcher::find(std::uint64_t generation) const noexcept {
  for (matching_group* const group : groups_) {
    if (group->group_id() == generation) return group;
  }
  return nullptr;
}

inline void matcher::post(request& req) {
  matching_group& group = *progress_of(req).group;
  ++(req.peer == any_source ? awaited_from_any_ : peers_[static_cast<std::size_t>(group.peer(req.peer))].awaited);
  unexpected* const m = find_unexpected(req);
  if (m == nullptr) return group.posted.push(req);
  if (req.peeks) return finish_peek(req, group.member(m->source), m->head);
  if (!accept(req, m->source, m->head)) return;
  if (m->announced()) {
    send_clearance(m->source, m->head.number, &req);
    remove_unexpected(*m);
  } else if (m->is_complete) {
    deliver_unexpected(*m, req);
  } else {
    m->receive = &req;
  }
}

inline matcher::unexpected* matcher::find_unexpected(const request& req) noexcept {
  if (unexpected_.empty()) return nullptr;
  const matching_group& group = *progress_of(const_cast<request&>(req)).group;
  const auto first_from = [&](int member) -> unexpected* {
    const auto found = unexpected_.find({group.group_id(), group.peer(member), req.tag});
    if (found == unexpected_.end()) return nullptr;
    const auto at = std::ranges::find(found->second, nullptr, &unexpected::receive);
    return at == found->second.end() ? nullptr : &*at;
  };
  if (req.peer != any_source) return first_from(req.peer);
  unexpected* first = nullptr;
  for (int member = 0; member < group.size(); ++member) {
    unexpected* const m = first_from(member);
    if (m != nullptr && (first == nullptr || m->order < first->order)) first = m;
  }
  return first;
}

inline void matcher::remove_unexpected(const unexpected& message) noexcept {
  const auto at = unexpected_.find({message.head.group_id, message.source, message.head.tag});
  auto& list = at->second;
  list.erase(std::ranges::find_if(list, [&](const unexpected& m) { return &m == &message; }));
  if (list.empty()) unexpected_.erase(at);
}

template <class Test>
inline void matcher::remove_unexpected_if(Test is_removed) noexcept {
  for (auto at = unexpected_.begin(); at != unexpected_.end();) {
    at->second.remove_if(is_removed);
    at = at->second.empty() ? unexpected_.erase(at) : std::next(at);
  }
}

inline request* matcher::take_posted(matching_group& group, int sender_rank, std::uint32_t tag) noexcept {
  const int member = group.member(sender_rank);
  if (member < 0) return nullptr;
  request* const req = group.posted.find_receive(member, tag, [](const request& posted) { return !posted.peeks; });
  if (req != nullptr) group.posted.remove(*req);
  return req;
}

inline void matcher::finish_peek(request& req, int member, const envelope& head) noexcept {
  req.source = member;
  req.received = head.total;
  finish_receive(req);
}

inline void matcher::finish_peeks(matching_group& group, int sender_rank, const envelope& head) noexcept {
  const int member = group.member(sender_rank);
  const auto peeks = [](const request& req) { return req.peeks; };
  while (request* const req = group.posted.find_receive(member, head.tag, peeks)) {
    group.posted.remove(*req);
    finish_peek(*req, member, head);
  }
}

// Gives the message of `head` to the receive. Returns false when the message does not fit; then the receive has failed.
inline bool matcher::accept(request& req, int sender_rank, const envelope& head) noexcept {
  matching_group& group = *progress_of(req).group;
  req.source = group.member(sender_rank);
  req.received = head.total;
  req.state = message_progress::moving;
  try {
    check_arrival(req, req.source, head.signature, head.total);
    return true;
  } catch (...) {
    if (!group.failure) group.failure = std::current_exception();
    finish_receive(req);
    return false;
  }
}

// Clears an announced message to send. With a null `req` the message is dropped when it arrives.
inline void matcher::send_clearance(int sender_rank, std::uint64_t number, request* req) {
  peers_[static_cast<std::size_t>(sender_rank)].cleared[number] = req;
  clear_to_send_(sender_rank, number);
}

// Delivers a complete unexpected message to the receive, and finishes the receive.
inline void matcher::deliver_unexpected(unexpected& message, request& req) {
  deliver_or_fail(req, message.bytes.data(), message.bytes.size());
  consumed_credits(message.source) += message.credit_owed;
  remove_unexpected(message);
  finish_receive(req);
}

inline void matcher::stop_waiting(request& req) noexcept {
  const matching_group& group = *progress_of(req).group;
  --(req.peer == any_source ? awaited_from_any_ : peers_[static_cast<std::size_t>(group.peer(req.peer))].awaited);
}

inline void matcher::finish_receive(request& req) noexcept {
  stop_waiting(req);
  finish(req);
}

inline void matcher::cancel(request& req) noexcept {
  matching_group& group = *progress_of(req).group;
  if (req.state == message_progress::waiting) {
    group.posted.remove(req);
  } else {
    const auto messages = unexpected_.find({group.group_id(), group.peer(req.source), req.tag});
    const auto m = messages == unexpected_.end() ? std::list<unexpected>::iterator{}
                                                 : std::ranges::find(messages->second, &req, &unexpected::receive);
    if (messages != unexpected_.end() && m != messages->second.end()) {
      request* const next = take_posted(group, m->source, m->head.tag);  // later messages must not overtake the message
      m->receive = next != nullptr && accept(*next, m->source, m->head) ? next : nullptr;
    }
    peer& sender = peers_[static_cast<std::size_t>(group.peer(req.source))];
    if (sender.arriving.receive == &req) sender.arriving.receive = nullptr;
    for (auto& entry : sender.cleared) {
      if (entry.second == &req) entry.second = nullptr;
    }
  }
  stop_waiting(req);
  end(req);
}

inline std::byte* matcher::inbound_target::place(std::uint64_t offset) const noexcept {
  if (receive != nullptr) return receive->combine != nullptr ? nullptr : receive->data + offset;
  return unexpected_message != nullptr ? unexpected_message->bytes.data() + offset : nullptr;
}

inline void matcher::inbound_target::put(std::uint64_t offset, std::span<const std::byte> bytes) const {
  if (receive != nullptr) {
    deliver_or_fail(*receive, bytes.data(), bytes.size(), offset);
  } else if (unexpected_message != nullptr) {
    copy_bytes(unexpected_message->bytes.data() + offset, bytes.data(), bytes.size());
  }
}

inline bool matcher::match(int sender_rank, const envelope& head, bool must_accept, inbound_target& target) {
  const bool announced = head.kind == message_kind::rts;
  target = {};
  matching_group* const group = find(head.group_id);
  bool is_dropped = group != nullptr ? group->member(sender_rank) < 0 : is_closed(head.group_id);
  request* const req = group != nullptr ? take_posted(*group, sender_rank, head.tag) : nullptr;
  if (req != nullptr && accept(*req, sender_rank, head)) {
    if (announced) {
      send_clearance(sender_rank, head.number, req);
    } else {
      target.receive = req;
    }
    return true;
  }
  // the message does not fit: a tagged message stays for the next receive, a collective's message is dropped
  if (req != nullptr) {
    is_dropped = head.tag == 0;
    must_accept = true;
  }
  if (is_dropped) {
    if (announced) send_clearance(sender_rank, head.number, nullptr);
    return true;
  }
  if (group != nullptr) finish_peeks(*group, sender_rank, head);
  if (!must_accept && !awaits(sender_rank)) return false;
  std::vector<std::byte> bytes(announced ? 0 : head.total);
  auto& messages = unexpected_[{head.group_id, sender_rank, head.tag}];
  messages.push_back({.source = sender_rank, .head = head, .bytes = std::move(bytes), .order = ++unexpected_count_});
  if (!announced) target.unexpected_message = &messages.back();
  return true;
}

inline const char* matcher::match_body(int sender_rank, const envelope& head, inbound_target& target) {
  auto& cleared = peers_[static_cast<std::size_t>(sender_rank)].cleared;
  const auto found = cleared.find(head.number);
  if (found == cleared.end()) return "it sent data without a clear-to-send";
  request* const req = found->second;
  if (req != nullptr && req->received != head.total) return "it sent data of another size than its request-to-send";
  cleared.erase(found);
  target = {.receive = req, .unexpected_message = nullptr};
  return nullptr;
}

inline void matcher::on_complete(inbound_target& target) {
  if (request* const req = std::exchange(target.receive, nullptr)) return finish_receive(*req);
  unexpected* const m = std::exchange(target.unexpected_message, nullptr);
  if (m == nullptr) return;
  m->is_complete = true;
  if (m->receive == nullptr) return;
  deliver_unexpected(*m, *m->receive);
}

inline void matcher::deliver_own(int self, const envelope& head, const request& sent) {
  inbound_target target;
  (void)match(self, head, true, target);
  target.put(0, {sent.data, sent.bytes});
  on_complete(target);
}

// Finishes a receive from any source whose sender was lost in the middle of the message. Other receives wait for the
// notification of their group.
inline void matcher::finish_without_data(request* req) noexcept {
  if (req == nullptr || req->peer != any_source) return;
  req->received = 0;
  finish_receive(*req);
}

inline void matcher::on_peer_lost(int sender_rank) noexcept {
  peer& sender = peers_[static_cast<std::size_t>(sender_rank)];
  finish_without_data(std::exchange(sender.arriving, {}).receive);
  for (const auto& entry : sender.cleared) finish_without_data(entry.second);
  sender.cleared.clear();
  remove_unexpected_if([&](unexpected& m) {
    if (m.source != sender_rank) return false;
    m.credit_owed = 0;  // a new connection starts with new credit
    if (m.is_complete) return false;
    finish_without_data(m.receive);
    return true;
  });
  sender.credit_taken = 0;
}

inline bool matcher::is_gone(int sender_rank, std::uint64_t generation) const noexcept {
  const matching_group* const group = find(generation);
  return group != nullptr && group->has_ended(group->member(sender_rank));
}

inline void matcher::drop_unexpected_of(int sender_rank, std::uint64_t generation) noexcept {
  remove_unexpected_if([&](const unexpected& m) { return m.source == sender_rank && m.head.group_id == generation; });
}

}}}  // namespace muster::v0::detail
