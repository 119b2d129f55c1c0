#include "messages.hpp"

#include <algorithm>
#include <cstring>

#include "copy.hpp"

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

void shm_messages::send(request& r, request_owner& owner) {
  r.owner = &owner;
  r.state = waiting;
  ::new (r.room) progress{0};
  auto& out = out_[static_cast<std::size_t>(r.peer)];
  append(out.first, out.last, r);
  if (out.first == &r) pump_out(r.peer);
}

// As much of [moved, bytes) as there is room for; true when all has gone.
bool shm_messages::push(int peer, const std::byte* data, std::uint64_t bytes, std::uint64_t& moved) {
  fifo& ring = board_.messages(board_.rank(), peer);
  const std::uint64_t size = board_.layout().fifo_bytes;
  std::uint64_t head = ring.head.load(std::memory_order_relaxed);
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

void shm_messages::pump_out(int peer) {
  auto& out = out_[static_cast<std::size_t>(peer)];
  if (!out.orphan.empty()) {
    if (!push(peer, out.orphan.data(), out.orphan.size(), out.orphan_moved)) return;
    out.orphan.clear();
  }
  while (out.first != nullptr) {
    request& r = *out.first;
    if (r.state == waiting) {
      const header head{r.mark, r.bytes, r.tag};
      std::uint64_t moved = 0;
      // A header goes whole or not at all: the ring has room for lines only.
      if (!push(peer, reinterpret_cast<const std::byte*>(&head), sizeof head, moved)) return;
      r.state = moving;
    }
    if (!push(peer, r.data, r.bytes, of(r).moved)) return;
    out.first = r.next;
    if (out.first == nullptr) out.last = nullptr;
    r.state = done;
    r.owner = nullptr;
  }
}

// ---- receiving ----

void shm_messages::receive(request& r, request_owner& owner) {
  r.owner = &owner;
  r.state = waiting;
  ::new (r.room) progress{0};
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
  unpost(r);
  r.source = came.source;
  r.received = came.head.bytes;
  check_arrival(r, came.source, came.head.mark, came.head.bytes);
  deliver(r, came.bytes.data(), came.bytes.size());
  return true;
}

// Reads the header of the next message and finds who it is for. False when there is none, or nobody waits for it and
// nobody for what may come behind it.
bool shm_messages::begin_message(int peer, incoming& in) {
  fifo& ring = board_.messages(peer, board_.rank());
  const std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  if (ring.head.load(std::memory_order_acquire) == tail) return false;
  std::memcpy(&in.head, ring.bytes() + tail % board_.layout().fifo_bytes, sizeof in.head);
  in.to = nullptr;
  in.aside = nullptr;
  bool somebody_waits = false;
  for (request* r = posted_first_; r != nullptr && in.to == nullptr; r = r->next) {
    if (r->state != waiting) continue;
    somebody_waits = somebody_waits || r->peer == peer || r->peer == any_source;
    if (wants(*r, peer, in.head.tag)) in.to = r;
  }
  if (in.to == nullptr && !somebody_waits) return false;
  in.open = true;
  in.moved = 0;
  if (in.to != nullptr) {
    in.to->source = peer;
    in.to->received = in.head.bytes;
    in.to->state = moving;
    try {
      check_arrival(*in.to, peer, in.head.mark, in.head.bytes);
    } catch (...) {
      unpost(*in.to);
      in.open = false;  // it stays in the ring
      throw;
    }
  } else {
    strays_.push_back({peer, in.head, std::vector<std::byte>(in.head.bytes), false});
    in.aside = &strays_.back();
  }
  ring.tail.store(tail + sizeof(header), std::memory_order_release);
  return true;
}

// Moves what has come of the open message.
void shm_messages::take(int peer, incoming& in) {
  fifo& ring = board_.messages(peer, board_.rank());
  const std::uint64_t size = board_.layout().fifo_bytes;
  std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  const std::uint64_t before = tail;
  std::uint64_t there = ring.head.load(std::memory_order_acquire) - tail;
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

bool shm_messages::test(request& r) {
  // All that is under way moves: a peer may wait for another of our requests than the one we are asked for.
  for (int peer = 0; peer < board_.size(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    if (out_[p].first != nullptr || !out_[p].orphan.empty()) pump_out(peer);
    if (in_[p].awaited > 0 || awaited_from_any_ > 0) pump_in(peer);
  }
  return r.owner == nullptr;
}

void shm_messages::cancel(request& r) noexcept {
  for (const request* posted = posted_first_; posted != nullptr; posted = posted->next) {
    if (posted != &r) continue;
    for (auto& in : in_) {
      if (in.to == &r) in.to = nullptr;  // the rest of the message goes nowhere
    }
    unpost(r);
    return;
  }
  r.owner = nullptr;
  for (auto& out : out_) {
    const bool begun = out.first == &r && r.state == moving;
    if (!unlink(out.first, out.last, r)) continue;
    if (!begun) return;
    // The receiver counts on the rest.
    out.orphan.assign(r.data + of(r).moved, r.data + r.bytes);
    out.orphan_moved = 0;
    return;
  }
}

}  // namespace muster::inline v0::detail
