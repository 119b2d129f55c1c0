#include "messages.hpp"

#include <algorithm>
#include <cstring>

#include <muster/core/error.hpp>

#include "../../core/copy.hpp"

namespace muster::inline v0::detail {
namespace {

void append(request*& first, request*& last, request& r) {
  r.next = nullptr;
  (last == nullptr ? first : last->next) = &r;
  last = &r;
}

bool unlink(request*& first, request*& last, const request& r) {
  request* before = nullptr;
  for (request* at = first; at != nullptr; before = at, at = at->next) {
    if (at != &r) continue;
    (before == nullptr ? first : before->next) = at->next;
    if (last == at) last = before;
    return true;
  }
  return false;
}

bool wants(const request& r, int source, std::uint32_t tag) {
  return r.tag == tag && (r.peer == source || r.peer == any_source);
}

// A message takes whole lines, so that headers never cross the end.
std::uint64_t padded(std::uint64_t bytes) { return (bytes + cache_line - 1) / cache_line * cache_line; }

}  // namespace

shm_messages::shm_messages(shm_board& board)
    : board_(board), out_(static_cast<std::size_t>(board.size())), in_(static_cast<std::size_t>(board.size())) {}

// ---- sending ----

void shm_messages::send(request& r, transport& owner) {
  r.owner = &owner;
  r.state = waiting;
  ::new (r.room) progress{0, 0, r.tag != 0 && r.bytes > eager};
  auto& out = out_[static_cast<std::size_t>(r.peer)];
  append(out.first, out.last, r);
  if (out.first == &r) pump_out(r.peer);
}

// As much of [moved, bytes) as there is room for; true when all has gone.
bool shm_messages::push(int peer, const std::byte* data, std::uint64_t bytes, std::uint64_t& moved) {
  fifo& ring = board_.messages(board_.rank(), peer);
  const std::uint64_t size = board_.layout().fifo_bytes;
  std::uint64_t head = ring.head.load(std::memory_order_relaxed);
  if (head == fifo::severed) return false;
  const std::uint64_t before = head;
  std::uint64_t room = size - (head - ring.tail.load(std::memory_order_acquire));
  while (moved < bytes && room > 0) {
    const std::uint64_t at = head % size;
    const std::uint64_t n = std::min({bytes - moved, size - at, room});
    copy_bytes(ring.bytes() + at, data + moved, n);
    moved += n;
    const std::uint64_t used = moved == bytes ? padded(n) : n;  // all but the last piece of a message are whole lines
    head += used;
    room -= std::min(used, room);
  }
  if (head != before) {
    ring.head.store(head, std::memory_order_release);
    board_.wake(peer);
  }
  return moved == bytes;
}

// A header goes whole or not at all: the ring has room for lines only.
bool shm_messages::push(int peer, const header& head) {
  std::uint64_t moved = 0;
  return push(peer, reinterpret_cast<const std::byte*>(&head), sizeof head, moved);
}

void shm_messages::pump_out(int peer) {
  auto& out = out_[static_cast<std::size_t>(peer)];
  for (;;) {
    request* const r = out.first;
    if (r == nullptr || r->state != moving) {
      while (!out.urgent.empty()) {
        if (!push(peer, out.urgent.front())) return;
        out.urgent.erase(out.urgent.begin());
        --clears_;
      }
      if (r == nullptr || !begin_sending(peer, *r)) return;
      if (r->state == announced) continue;
    }
    if (!push(peer, r->data, r->bytes, of(*r).moved)) return;
    unlink(out.first, out.last, *r);
    finish_send(*r);
  }
}

// Puts the header of the first in its queue into the ring; false when there is no room.
bool shm_messages::begin_sending(int peer, request& r) {
  auto& out = out_[static_cast<std::size_t>(peer)];
  auto& p = of(r);
  if (!p.announces) {
    if (!push(peer, {r.mark, r.bytes, r.tag, kind::message, 0})) return false;
  } else if (r.state == cleared) {
    if (!push(peer, {r.mark, r.bytes, r.tag, kind::body, p.number})) return false;
  } else {
    if (!push(peer, {r.mark, r.bytes, r.tag, kind::announce, out.announcements})) return false;
    p.number = out.announcements++;
    unlink(out.first, out.last, r);
    out.uncleared.emplace(p.number, &r);
    r.state = announced;
    return true;
  }
  r.state = moving;
  return true;
}

void shm_messages::finish_send(request& r) noexcept {
  r.state = done;
  r.owner = nullptr;
  if (!orphans_.empty()) orphans_.remove_if([&](const orphan& one) { return &one.r == &r; });
}

// The receiver counts on it: it goes on from memory of our own.
void shm_messages::adopt(outgoing& out, request& r) {
  std::list<orphan> made(1);
  request& own = made.front().r;
  made.front().bytes.assign(r.data, r.data + r.bytes);
  orphans_.splice(orphans_.end(), made);  // nothing throws from here on
  own.data = orphans_.back().bytes.data();
  own.bytes = r.bytes;
  own.peer = r.peer;
  own.tag = r.tag;
  own.mark = r.mark;
  own.state = r.state;
  ::new (own.room) progress(of(r));
  if (r.state == announced) {
    out.uncleared[of(r).number] = &own;
    return;
  }
  own.next = r.next;
  request* before = nullptr;
  for (request* at = out.first; at != &r; at = at->next) before = at;
  (before == nullptr ? out.first : before->next) = &own;
  if (out.last == &r) out.last = &own;
}

// Without memory a message cannot go on: its receiver gets an error in place of the rest, and of all behind it.
void shm_messages::sever(int peer) noexcept {
  board_.messages(board_.rank(), peer).head.store(fifo::severed, std::memory_order_release);
  board_.wake(peer);
}

// ---- receiving ----

void shm_messages::break_off(int peer, const char* what) const {
  const int rank = board_.name_of(peer);
  throw peer_failure(
      {rank}, "the messages of rank " + std::to_string(rank) + " broke off (" + what + "); see what it says itself");
}

// Bytes in the ring from there. What another process has written is not believed beyond what there can be.
std::uint64_t shm_messages::unread(int peer) {
  fifo& ring = board_.messages(peer, board_.rank());
  const std::uint64_t head = ring.head.load(std::memory_order_acquire);
  if (head == fifo::severed) break_off(peer, "it had no memory left");
  const std::uint64_t there = head - ring.tail.load(std::memory_order_relaxed);
  if (there > board_.layout().fifo_bytes) break_off(peer, "it counts more bytes than its ring has");
  return there;
}

void shm_messages::receive(request& r, transport& owner) {
  r.owner = &owner;
  r.state = waiting;
  ::new (r.room) progress{};
  append(posted_first_, posted_last_, r);
  ++(r.peer == any_source ? awaited_from_any_ : in_[static_cast<std::size_t>(r.peer)].awaited);
  if (!strays_.empty()) (void)take_stray(r);
}

// Whether a message that was put aside is what `r` waits for; one that is still coming may be.
bool shm_messages::take_stray(request& r) {
  const auto found = std::find_if(strays_.begin(), strays_.end(),
                                  [&](const stray& s) { return s.complete && wants(r, s.source, s.head.tag); });
  if (found == strays_.end()) return false;
  const stray came = std::move(*found);
  strays_.erase(found);
  if (came.head.what == kind::announce) {
    bind(came.source, came.head, r);
    pump_out(came.source);
    return true;
  }
  unpost(r);
  r.source = came.source;
  r.received = came.head.bytes;
  check_arrival(r, came.source, came.head.mark, came.head.bytes);
  deliver(r, came.bytes.data(), came.bytes.size());
  return true;
}

// The receive gets what was announced.
void shm_messages::bind(int peer, const header& announcement, request& r) {
  r.source = peer;
  r.received = announcement.bytes;
  r.state = moving;
  try {
    check_arrival(r, peer, announcement.mark, announcement.bytes);
  } catch (...) {
    unpost(r);
    throw;
  }
  const auto p = static_cast<std::size_t>(peer);
  in_[p].cleared.emplace(announcement.number, &r);
  out_[p].urgent.push_back({{}, 0, 0, kind::clear, announcement.number});
  ++clears_;
}

// Reads the header of the next message and finds who it is for. False when there is none, or nobody waits for it and
// nobody for what may come behind it.
bool shm_messages::begin_message(int peer, incoming& in) {
  fifo& ring = board_.messages(peer, board_.rank());
  const std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  if (unread(peer) == 0) return false;
  std::memcpy(&in.head, ring.bytes() + tail % board_.layout().fifo_bytes, sizeof in.head);
  in.to = nullptr;
  in.aside = nullptr;
  auto& out = out_[static_cast<std::size_t>(peer)];
  if (in.head.what == kind::clear) {
    const auto found = out.uncleared.find(in.head.number);
    if (found == out.uncleared.end()) break_off(peer, "it asks for a message that was not announced");
    found->second->state = cleared;
    append(out.first, out.last, *found->second);
    out.uncleared.erase(found);
  } else if (in.head.what == kind::body) {
    const auto found = in.cleared.find(in.head.number);
    if (found == in.cleared.end()) break_off(peer, "it sent a message that it was not asked for");
    if (found->second != nullptr && found->second->received != in.head.bytes)
      break_off(peer, "it sent another message than it announced");
    in.to = found->second;
    in.cleared.erase(found);
    in.open = true;
    in.moved = 0;
  } else {
    bool must_pass = !out.uncleared.empty() || !in.cleared.empty();  // what is waited for comes behind it
    for (request* r = posted_first_; r != nullptr && in.to == nullptr; r = r->next) {
      if (r->state != waiting) continue;
      must_pass = must_pass || r->peer == peer || r->peer == any_source;
      if (wants(*r, peer, in.head.tag)) in.to = r;
    }
    if (in.to == nullptr && !must_pass) return false;
    begin_payload(peer, in);
  }
  ring.tail.store(tail + sizeof(header), std::memory_order_release);
  return true;
}

// Where that of the message goes that begins, now or when it is cleared. What throws leaves it in the ring.
void shm_messages::begin_payload(int peer, incoming& in) {
  const bool is_here = in.head.what == kind::message;
  if (in.to == nullptr) {
    strays_.push_back({peer, in.head, std::vector<std::byte>(is_here ? in.head.bytes : 0), !is_here});
    in.aside = is_here ? &strays_.back() : nullptr;
  } else if (!is_here) {
    bind(peer, in.head, *in.to);
  } else {
    in.to->source = peer;
    in.to->received = in.head.bytes;
    in.to->state = moving;
    try {
      check_arrival(*in.to, peer, in.head.mark, in.head.bytes);
    } catch (...) {
      unpost(*in.to);
      throw;
    }
  }
  in.open = is_here;
  in.moved = 0;
}

// Moves what has come of the open message.
void shm_messages::take(int peer, incoming& in) {
  fifo& ring = board_.messages(peer, board_.rank());
  const std::uint64_t size = board_.layout().fifo_bytes;
  std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  const std::uint64_t before = tail;
  std::uint64_t there = unread(peer);
  while (in.moved < in.head.bytes && there > 0) {
    const std::uint64_t at = tail % size;
    const std::uint64_t n = std::min({in.head.bytes - in.moved, size - at, there});
    const std::byte* const from = ring.bytes() + at;
    if (in.to != nullptr) {
      request& r = *in.to;
      if (r.combine != nullptr) {
        r.combine->combine(r.data + in.moved, from, n, r.incoming_first);
      } else {
        copy_bytes(r.data + in.moved, from, n);
      }
    } else if (in.aside != nullptr) {
      std::memcpy(in.aside->bytes.data() + in.moved, from, n);
    }
    in.moved += n;
    const std::uint64_t used = in.moved == in.head.bytes ? padded(n) : n;
    tail += used;
    there -= std::min(used, there);
    ring.tail.store(tail, std::memory_order_release);  // piece by piece: the sender goes on in the meantime
  }
  if (tail != before) board_.wake(peer);
}

void shm_messages::pump_in(int peer) {
  auto& in = in_[static_cast<std::size_t>(peer)];
  while (in.open || begin_message(peer, in)) {
    if (!in.open) continue;  // a word about messages
    take(peer, in);
    if (in.moved < in.head.bytes) return;
    in.open = false;
    if (in.to != nullptr) {
      unpost(*in.to);
    } else if (in.aside != nullptr) {
      in.aside->complete = true;
      in.aside = nullptr;
      for (request* r = posted_first_; r != nullptr; r = r->next) {
        if (r->state == waiting && take_stray(*r)) break;
      }
    } else {
      --in.drops;
      --drops_;
    }
  }
}

void shm_messages::unpost(request& r) noexcept {
  unlink(posted_first_, posted_last_, r);
  --(r.peer == any_source ? awaited_from_any_ : in_[static_cast<std::size_t>(r.peer)].awaited);
  r.state = done;
  r.owner = nullptr;
}

// ---- both ----

// A peer may wait for another of our requests than the one that is tested.
void shm_messages::move() {
  for (int peer = 0; peer < board_.size(); ++peer) {
    auto& out = out_[static_cast<std::size_t>(peer)];
    if (out.first != nullptr || !out.urgent.empty()) pump_out(peer);
    const auto& in = in_[static_cast<std::size_t>(peer)];
    if (in.awaited > 0 || awaited_from_any_ > 0 || !out.uncleared.empty() || in.drops > 0) {
      pump_in(peer);
      if (!out.urgent.empty()) pump_out(peer);
    }
  }
}

void shm_messages::cancel(request& r) noexcept {
  for (const request* posted = posted_first_; posted != nullptr; posted = posted->next) {
    if (posted != &r) continue;
    for (auto& in : in_) {  // the rest of the message goes nowhere, and its sender counts on that
      const auto drop = [&](request*& to) {
        to = nullptr;
        ++in.drops;
        ++drops_;
      };
      if (in.open && in.to == &r) drop(in.to);
      for (auto& entry : in.cleared) {
        if (entry.second == &r) drop(entry.second);
      }
    }
    unpost(r);
    return;
  }
  r.owner = nullptr;
  auto& out = out_[static_cast<std::size_t>(r.peer)];
  if (r.state == waiting) {
    unlink(out.first, out.last, r);
  } else if (r.state != done) {
    try {
      adopt(out, r);
    } catch (const std::bad_alloc&) {
      sever(r.peer);
      if (r.state == announced) out.uncleared.erase(of(r).number);
      unlink(out.first, out.last, r);
    }
  }
}

}  // namespace muster::inline v0::detail
