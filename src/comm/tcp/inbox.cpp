#include "inbox.hpp"

#include <algorithm>
#include <cstring>

namespace muster::inline v0::detail {
namespace {

bool wants(const request& r, int member, std::uint32_t tag) {
  return r.tag == tag && (r.peer == member || r.peer == any_source);
}

}  // namespace

// ---- groups ----

void tcp_inbox::open(tcp_channel& group) { channels_.push_back(&group); }

void tcp_inbox::close(tcp_channel& group) {
  std::erase(channels_, &group);
  closed_[closings_++ % closed_.size()] = group.generation();
  strays_.remove_if([&](const stray& s) {
    if (s.head.generation != group.generation()) return false;
    taken_of(s.source) += s.owed;
    return true;
  });
}

tcp_channel* tcp_inbox::find(std::uint64_t generation) const noexcept {
  for (tcp_channel* const group : channels_) {
    if (group->generation() == generation) return group;
  }
  return nullptr;
}

// ---- receives ----

tcp_inbox::stray* tcp_inbox::post(request& r) {
  tcp_channel& group = *progress_of(r).channel;
  ++(r.peer == any_source ? awaited_from_any_ : awaited_[static_cast<std::size_t>(group.world_rank(r.peer))]);
  for (auto at = strays_.begin(); at != strays_.end(); ++at) {
    stray& s = *at;
    if (s.to != nullptr || s.head.generation != group.generation()) continue;
    if (!wants(r, group.member(s.source), s.head.tag)) continue;
    if (!accept(r, s.source, s.head)) return nullptr;
    if (s.announced()) {
      s.to = &r;
      return &s;
    }
    if (!s.complete()) {
      s.to = &r;
      return nullptr;
    }
    deliver(r, s.bytes.data(), s.bytes.size());
    taken_of(s.source) += s.owed;
    strays_.erase(at);
    finish(r);
    return nullptr;
  }
  append(group.posted_first, group.posted_last, r);
  return nullptr;
}

request* tcp_inbox::find_posted(tcp_channel& group, int source, std::uint32_t tag) const noexcept {
  const int member = group.member(source);
  for (request* r = group.posted_first; r != nullptr; r = r->next) {
    if (wants(*r, member, tag)) return r;
  }
  return nullptr;
}

// The receive is to get the message of `head`; false when that does not fit it, and then it is over.
bool tcp_inbox::accept(request& r, int source, const frame& head) noexcept {
  tcp_channel& group = *progress_of(r).channel;
  r.source = group.member(source);
  r.received = head.total;
  r.state = tcp_progress::moving;
  try {
    check_arrival(r, r.source, head.mark, head.total);
    return true;
  } catch (...) {
    if (!group.failure) group.failure = std::current_exception();
    finish(r);
    return false;
  }
}

void tcp_inbox::forget(request& r) noexcept {
  tcp_channel& group = *progress_of(r).channel;
  --(r.peer == any_source ? awaited_from_any_ : awaited_[static_cast<std::size_t>(group.world_rank(r.peer))]);
  end(r);
}

void tcp_inbox::finish(request& r) noexcept {
  tcp_channel& group = *progress_of(r).channel;
  forget(r);
  ++group.finished;
  group.wake();
}

bool tcp_inbox::withdraw(request& r) noexcept {
  tcp_channel& group = *progress_of(r).channel;
  if (r.state == tcp_progress::waiting) {
    unlink(group.posted_first, group.posted_last, r);
    forget(r);
    return true;
  }
  const auto bound = std::find_if(strays_.begin(), strays_.end(), [&](const stray& s) { return s.to == &r; });
  if (bound == strays_.end()) return false;
  bound->to = nullptr;  // the next receive gets it
  forget(r);
  return true;
}

// ---- messages ----

tcp_inbox::verdict tcp_inbox::match(int source, const frame& head, bool must_pass, arrival& to) {
  const bool announced = head.kind == frame_kind::announce;
  to = {};
  tcp_channel* const group = find(head.generation);
  if (group != nullptr ? group->member(source) < 0 : is_closed(head.generation)) return verdict::dropped;
  if (request* const r = group != nullptr ? find_posted(*group, source, head.tag) : nullptr; r != nullptr) {
    unlink(group->posted_first, group->posted_last, *r);
    if (accept(*r, source, head)) {
      to.to = r;
      if (head.total == 0 && !announced) came(to, 0);
      return verdict::taken;
    }
    if (head.tag == 0) return verdict::dropped;  // the group has failed
    must_pass = true;
  }
  if (!must_pass && !awaits(source)) return verdict::held;
  stray& aside = strays_.emplace_back(stray{.source = source, .head = head, .bytes = {}});
  if (announced) return verdict::held;
  aside.bytes.resize(head.total);
  to.aside = &aside;
  return verdict::taken;
}

const tcp_inbox::stray* tcp_inbox::find_announced(const tcp_channel& group) const noexcept {
  const auto found = std::find_if(strays_.begin(), strays_.end(), [&](const stray& s) {
    return s.announced() && s.head.generation == group.generation();
  });
  return found != strays_.end() ? &*found : nullptr;
}

void tcp_inbox::release(const stray& one) {
  strays_.remove_if([&](const stray& s) { return &s == &one; });
}

void tcp_inbox::lose(int source) noexcept {
  for (auto at = strays_.begin(); at != strays_.end();) {
    stray& s = *at;
    const bool goes = s.source == source && !s.complete();
    if (goes && s.to != nullptr) break_off(*s.to);
    if (s.source == source) s.owed = 0;  // the credit of a new connection is new
    at = goes ? strays_.erase(at) : std::next(at);
  }
  taken_of(source) = 0;
}

bool tcp_inbox::is_gone(int source, std::uint64_t generation) const noexcept {
  const tcp_channel* const group = find(generation);
  return group != nullptr && group->has_lost(group->member(source));
}

void tcp_inbox::forget(int source, std::uint64_t generation) noexcept {
  strays_.remove_if([&](const stray& s) { return s.source == source && s.head.generation == generation; });
}

// Its message has no end. One of a rank waits for what that rank never says, which its group is told.
void tcp_inbox::break_off(request& r) noexcept {
  if (r.peer != any_source) return;
  r.received = 0;
  finish(r);
}

std::byte* tcp_inbox::place_of(const arrival& to, std::uint64_t offset) noexcept {
  if (to.to != nullptr) return to.to->combine != nullptr ? nullptr : to.to->data + offset;
  return to.aside != nullptr ? to.aside->bytes.data() + offset : nullptr;
}

void tcp_inbox::came(arrival& to, std::uint64_t bytes) {
  if (to.to != nullptr) {
    auto& p = progress_of(*to.to);
    p.moved += bytes;
    if (p.moved == to.to->received) finish(*std::exchange(to.to, nullptr));
    return;
  }
  if (to.aside == nullptr) return;
  stray& aside = *to.aside;
  aside.come += bytes;
  if (!aside.complete()) return;
  to.aside = nullptr;
  if (aside.to == nullptr) return;
  request& r = *aside.to;
  deliver(r, aside.bytes.data(), aside.bytes.size());
  taken_of(aside.source) += aside.owed;
  release(aside);
  finish(r);
}

void tcp_inbox::deliver_own(tcp_channel& group, request& sent) {
  frame head;
  head.tag = sent.tag;
  head.mark = sent.mark;
  head.generation = group.generation();
  head.total = head.bytes = sent.bytes;
  arrival to;
  if (match(group.world_rank(group.rank()), head, true, to) != verdict::taken) return;
  if (sent.bytes == 0) {
    if (to.aside != nullptr) came(to, 0);
    return;
  }
  if (to.to != nullptr) {
    deliver(*to.to, sent.data, sent.bytes);
  } else {
    std::memcpy(to.aside->bytes.data(), sent.data, sent.bytes);
  }
  came(to, sent.bytes);
}

}  // namespace muster::inline v0::detail
