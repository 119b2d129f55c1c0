#include "messages.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <muster/core/error.hpp>

#include "../../../core/copy.hpp"
#include "../../../core/round_up.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

shm_messages::shm_messages(shm_group& shm)
    : shm_(shm),
      group_(0, all_ranks(shm.size()), shm.rank(), shm.size()),
      matcher_(shm.size(),
               [this](int peer, std::uint64_t number) {
                 to(peer).clears.push_back(number);
                 owes_ = true;
               }),
      out_(static_cast<std::size_t>(shm.size())),
      in_(static_cast<std::size_t>(shm.size())) {
  matcher_.open(group_);
}

// ---- sending ----

void shm_messages::send(request& r, transport& owner) {
  r.owner = &owner;
  r.state = message_progress::waiting;
  ::new (r.room) message_progress{.group = &group_, .announces = r.tag != 0 && r.bytes > eager};
  outbox& sends = to(r.peer).sends;
  sends.push(r);
  if (sends.front() == &r) pump_out(r.peer);
}

// As much of [moved, bytes) as there is room for; true when all has gone.
bool shm_messages::push(int peer, const std::byte* data, std::uint64_t bytes, std::uint64_t& moved) {
  fifo& ring = shm_.messages(shm_.rank(), peer);
  const std::uint64_t size = shm_.layout().fifo_bytes;
  std::uint64_t head = ring.head.load(std::memory_order_relaxed);
  if (head == fifo::severed) return false;
  const std::uint64_t before = head;
  std::uint64_t room = size - (head - ring.tail.load(std::memory_order_acquire));
  while (moved < bytes && room > 0) {
    const std::uint64_t at = head % size;
    const std::uint64_t n = std::min({bytes - moved, size - at, room});
    shm_.host().put(ring.bytes() + at, data + moved, n);
    moved += n;
    // A message takes whole lines, so that headers never cross the end; all but its last piece are whole lines.
    const std::uint64_t used = moved == bytes ? round_up(n, cache_line) : n;
    head += used;
    room -= std::min(used, room);
  }
  if (head != before) {
    ring.head.store(head, std::memory_order_release);
    shm_.wake(peer);
  }
  return moved == bytes;
}

// A header goes whole or not at all: the ring has room for lines only.
bool shm_messages::push(int peer, const envelope& what) {
  const header head{what};
  std::uint64_t moved = 0;
  return push(peer, reinterpret_cast<const std::byte*>(&head), sizeof head, moved);
}

void shm_messages::pump_out(int peer) {
  outgoing& out = to(peer);
  for (;;) {
    request* const r = out.sends.front();
    if (r == nullptr || !progress_of(*r).has_head) {
      while (!out.clears.empty()) {
        envelope word;
        word.kind = message_kind::cts;
        word.number = out.clears.front();
        if (!push(peer, word)) return;
        out.clears.erase(out.clears.begin());
      }
      if (r == nullptr || !begin_sending(peer, *r)) return;
      if (!progress_of(*r).has_head) continue;  // it was announced
    }
    if (!push(peer, r->data, r->bytes, progress_of(*r).moved)) return;
    out.sends.pop();
    out.sends.finish(*r);
  }
}

// Puts the header of the first in its queue into the ring, or announces it; false when there is no room.
bool shm_messages::begin_sending(int peer, request& r) {
  outgoing& out = to(peer);
  auto& p = progress_of(r);
  const bool asks = p.announces && r.state == message_progress::waiting;
  const message_kind kind = asks ? message_kind::rts : p.announces ? message_kind::data : message_kind::message;
  const std::uint64_t number = asks ? out.announcements : p.number;
  if (!push(peer, {.signature = r.signature, .total = r.bytes, .number = number, .tag = r.tag, .kind = kind}))
    return false;
  r.state = message_progress::moving;
  p.has_head = !asks;
  if (asks) out.sends.announce(out.announcements++);
  return true;
}

// Without memory a message cannot go on: its receiver gets an error in place of the rest, and of all behind it.
void shm_messages::sever(int peer) noexcept {
  shm_.messages(shm_.rank(), peer).head.store(fifo::severed, std::memory_order_release);
  shm_.wake(peer);
}

// ---- receiving ----

void shm_messages::break_off(int peer, const char* what) const {
  const int rank = shm_.name_of(peer);
  throw peer_failure({rank},
                     "the messages of rank " + std::to_string(rank) + " ended (" + what + "); see its own message");
}

void shm_messages::require(int peer, const char* fault) const {
  if (fault != nullptr) break_off(peer, fault);
}

// Bytes in the ring from there. What another process has written is not believed beyond what there can be.
std::uint64_t shm_messages::unread(int peer) {
  fifo& ring = shm_.messages(peer, shm_.rank());
  const std::uint64_t head = ring.head.load(std::memory_order_acquire);
  if (head == fifo::severed) break_off(peer, "it is out of memory");
  const std::uint64_t there = head - ring.tail.load(std::memory_order_relaxed);
  if (there > shm_.layout().fifo_bytes) break_off(peer, "its ring's head is beyond its size");
  return there;
}

void shm_messages::receive(request& r, transport& owner) {
  r.owner = &owner;
  r.state = message_progress::waiting;
  ::new (r.room) message_progress{.group = &group_, .receives = true};
  matcher_.post(r);
}

// Reads the header of the next message and finds its receive. False when there is none, or no receive waits for it and
// none for what may come behind it.
bool shm_messages::begin_message(int peer, incoming& in) {
  fifo& ring = shm_.messages(peer, shm_.rank());
  const std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  if (unread(peer) == 0) return false;
  header head;
  std::memcpy(&head, ring.bytes() + tail % shm_.layout().fifo_bytes, sizeof head);
  outbox& sends = to(peer).sends;
  auto& arrival = matcher_.arrival_of(peer);
  if (head.kind == message_kind::cts) {
    require(peer, sends.clear(head.number));
  } else if (head.kind == message_kind::data) {
    require(peer, matcher_.match_body(peer, head, arrival));
  } else if (!matcher_.match(peer, head, sends.awaits_clear(), arrival)) {
    return false;
  }
  const bool is_here = head.kind == message_kind::message || head.kind == message_kind::data;
  in = {is_here, head.total, 0};
  ring.tail.store(tail + sizeof head, std::memory_order_release);
  return true;
}

// Moves what has come of the open message.
void shm_messages::take(int peer, incoming& in) {
  fifo& ring = shm_.messages(peer, shm_.rank());
  const auto& arrival = matcher_.arrival_of(peer);
  const std::uint64_t size = shm_.layout().fifo_bytes;
  std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  const std::uint64_t before = tail;
  std::uint64_t there = unread(peer);
  while (in.moved < in.total && there > 0) {
    const std::uint64_t at = tail % size;
    const std::uint64_t n = std::min({in.total - in.moved, size - at, there});
    arrival.put(in.moved, {ring.bytes() + at, n});
    in.moved += n;
    const std::uint64_t used = in.moved == in.total ? round_up(n, cache_line) : n;
    tail += used;
    there -= std::min(used, there);
    ring.tail.store(tail, std::memory_order_release);  // piece by piece: the sender goes on in the meantime
  }
  if (tail != before) shm_.wake(peer);
}

void shm_messages::pump_in(int peer) {
  auto& in = in_[static_cast<std::size_t>(peer)];
  while (in.open || begin_message(peer, in)) {
    if (!in.open) continue;  // a word about messages
    take(peer, in);
    if (in.moved < in.total) return;
    in.open = false;
    matcher_.came(matcher_.arrival_of(peer));
  }
}

// ---- both ----

// A peer may wait for another of our requests than the one that is tested.
void shm_messages::move() {
  for (int peer = 0; peer < shm_.size(); ++peer) {
    outgoing& out = to(peer);
    const bool is_open = in_[static_cast<std::size_t>(peer)].open;
    if (out.sends.front() != nullptr || !out.clears.empty()) pump_out(peer);
    if (is_open || matcher_.awaits(peer) || out.sends.awaits_clear()) {
      pump_in(peer);
      if (!out.clears.empty()) pump_out(peer);
    }
  }
  if (!owes_) return;
  owes_ = false;
  for (int peer = 0; peer < shm_.size(); ++peer) {
    const outgoing& out = to(peer);
    owes_ = owes_ || !out.clears.empty() || out.sends.has_adopted() || matcher_.has_cleared(peer) ||
            in_[static_cast<std::size_t>(peer)].open;
  }
}

void shm_messages::cancel(request& r) noexcept {
  owes_ = true;
  if (progress_of(r).receives) return matcher_.cancel(r);
  outbox& sends = to(r.peer).sends;
  const bool goes_on = r.state == message_progress::moving;  // the receiver counts on it
  if (goes_on && sends.adopt(r) == nullptr) sever(r.peer);
  sends.drop(r);
  r.owner = nullptr;
}

}}}  // namespace muster::v0::detail
