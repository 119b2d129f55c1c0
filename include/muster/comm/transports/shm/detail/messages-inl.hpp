#pragma once

#include <muster/comm/transports/shm/messages.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <muster/core/copy.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/round_up.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline std::vector<int> all_ranks(int rank_count) {
  std::vector<int> ranks(static_cast<std::size_t>(rank_count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

MUSTER_INLINE shm_messages::shm_messages(shm_group& shm)
    : shm_(shm),
      group_(0, all_ranks(shm.size()), shm.rank(), shm.size()),
      matcher_(shm.size(),
               [this](int peer, std::uint64_t number) {
                 outgoing_to(peer).clear_to_send.push_back(number);
                 has_unfinished_ = true;
               }),
      out_(static_cast<std::size_t>(shm.size())),
      in_(static_cast<std::size_t>(shm.size())) {
  matcher_.open(group_);
}

// ---- sending ----

MUSTER_INLINE void shm_messages::send(request& req, transport& owner) {
  req.owner = &owner;
  req.state = message_progress::waiting;
  ::new (req.transport_storage) message_progress{.group = &group_, .announces = req.tag != 0 && req.bytes > eager};
  outbox& sends = outgoing_to(req.peer).sends;
  sends.push(req);
  if (sends.front() == &req) send_pending(req.peer);
}

// Copies as much of [moved, bytes) into the ring as there is room for. Returns true when all bytes are in the ring.
MUSTER_INLINE bool shm_messages::push(int peer, const std::byte* data, std::uint64_t bytes, std::uint64_t& moved) {
  fifo& ring = shm_.message_ring(shm_.rank(), peer);
  const std::uint64_t capacity = shm_.layout().fifo_bytes;
  std::uint64_t head = ring.head.load(std::memory_order_relaxed);
  if (head == fifo::severed) return false;
  const std::uint64_t old_head = head;
  std::uint64_t room = capacity - (head - ring.tail.load(std::memory_order_acquire));
  while (moved < bytes && room > 0) {
    const std::uint64_t offset = head % capacity;
    const std::uint64_t n = std::min({bytes - moved, capacity - offset, room});
    shm_.host().put(ring.bytes() + offset, data + moved, n);
    moved += n;
    // A message takes whole cache lines, so that no header crosses the end of the ring. Only the last part of a message
    // is shorter than whole lines.
    const std::uint64_t used = moved == bytes ? round_up(n, cache_line) : n;
    head += used;
    room -= std::min(used, room);
  }
  if (head != old_head) {
    ring.head.store(head, std::memory_order_release);
    shm_.mark_arrival(peer);
    shm_.wake(peer);
  }
  return moved == bytes;
}

// Copies a header into the ring, whole or not at all: the free space is a multiple of whole lines.
MUSTER_INLINE bool shm_messages::push(int peer, const envelope& message) {
  const header head{message};
  std::uint64_t moved = 0;
  return push(peer, reinterpret_cast<const std::byte*>(&head), sizeof head, moved);
}

// Copies queued sends and clear-to-sends for the peer into the ring, until the ring is full.
MUSTER_INLINE void shm_messages::send_pending(int peer) {
  outgoing& out = outgoing_to(peer);
  for (;;) {
    request* const req = out.sends.front();
    if (req == nullptr || !progress_of(*req).has_head) {
      while (!out.clear_to_send.empty()) {
        envelope reply;
        reply.kind = message_kind::cts;
        reply.number = out.clear_to_send.front();
        if (!push(peer, reply)) return;
        out.clear_to_send.erase(out.clear_to_send.begin());
      }
      if (req == nullptr || !begin_sending(peer, *req)) return;
      if (!progress_of(*req).has_head) continue;  // the message was announced
    }
    if (!push(peer, req->data, req->bytes, progress_of(*req).moved)) return;
    out.sends.pop();
    out.sends.finish(*req);
  }
}

// Copies the header of the first queued send into the ring, or announces the send. Returns false when the ring has no
// room.
MUSTER_INLINE bool shm_messages::begin_sending(int peer, request& req) {
  outgoing& out = outgoing_to(peer);
  auto& p = progress_of(req);
  const bool announces = p.announces && req.state == message_progress::waiting;
  const message_kind kind = announces ? message_kind::rts : p.announces ? message_kind::data : message_kind::message;
  const std::uint64_t number = announces ? out.announcements : p.number;
  if (!push(peer, {.signature = req.signature, .total = req.bytes, .number = number, .tag = req.tag, .kind = kind}))
    return false;
  req.state = message_progress::moving;
  p.has_head = !announces;
  if (announces) out.sends.announce(out.announcements++);
  return true;
}

// Marks the ring as severed: a message cannot continue without memory. The receiver gets an error in place of the rest
// and the later messages.
MUSTER_INLINE void shm_messages::sever(int peer) noexcept {
  shm_.message_ring(shm_.rank(), peer).head.store(fifo::severed, std::memory_order_release);
  shm_.mark_arrival(peer);
  shm_.wake(peer);
}

// ---- receiving ----

MUSTER_INLINE void shm_messages::throw_broken(int peer, const char* reason) const {
  const int rank = shm_.reported_rank(peer);
  throw peer_failure({rank},
                     "the messages of rank " + std::to_string(rank) + " ended (" + reason + "); see its own message");
}

MUSTER_INLINE void shm_messages::throw_if_broken(int peer, const char* fault) const {
  if (fault != nullptr) throw_broken(peer, fault);
}

// Returns the number of unread bytes in the ring from `peer`. Throws if a peer has written an impossible position.
MUSTER_INLINE std::uint64_t shm_messages::unread(int peer) {
  fifo& ring = shm_.message_ring(peer, shm_.rank());
  const std::uint64_t head = ring.head.load(std::memory_order_acquire);
  if (head == fifo::severed) throw_broken(peer, "it is out of memory");
  const std::uint64_t available = head - ring.tail.load(std::memory_order_relaxed);
  if (available > shm_.layout().fifo_bytes) throw_broken(peer, "its ring's head is beyond its size");
  return available;
}

MUSTER_INLINE void shm_messages::receive(request& req, transport& owner) {
  req.owner = &owner;
  req.state = message_progress::waiting;
  ::new (req.transport_storage) message_progress{.group = &group_, .receives = true};
  matcher_.post(req);
}

// Reads the header of the next message and finds its receive. Returns false if there is no message, or if no receive is
// posted for it and none for a message that may follow it.
MUSTER_INLINE bool shm_messages::begin_message(int peer, incoming& in) {
  fifo& ring = shm_.message_ring(peer, shm_.rank());
  const std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  if (unread(peer) == 0) return false;
  header head;
  std::memcpy(&head, ring.bytes() + tail % shm_.layout().fifo_bytes, sizeof head);
  outbox& sends = outgoing_to(peer).sends;
  auto& target = matcher_.target_of(peer);
  if (head.kind == message_kind::cts) {
    throw_if_broken(peer, sends.on_clear_to_send(head.number));
  } else if (head.kind == message_kind::data) {
    throw_if_broken(peer, matcher_.match_body(peer, head, target));
  } else if (!matcher_.match(peer, head, sends.awaits_clear(), target)) {
    return false;
  }
  const bool has_payload = head.kind == message_kind::message || head.kind == message_kind::data;
  in = {has_payload, head.total, 0};
  ring.tail.store(tail + sizeof head, std::memory_order_release);
  return true;
}

// Copies the bytes that have arrived of the message in progress.
MUSTER_INLINE void shm_messages::copy_payload(int peer, incoming& in) {
  fifo& ring = shm_.message_ring(peer, shm_.rank());
  const auto& target = matcher_.target_of(peer);
  const std::uint64_t capacity = shm_.layout().fifo_bytes;
  std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  const std::uint64_t old_tail = tail;
  std::uint64_t available = unread(peer);
  while (in.moved < in.total && available > 0) {
    const std::uint64_t offset = tail % capacity;
    const std::uint64_t n = std::min({in.total - in.moved, capacity - offset, available});
    target.put(in.moved, {ring.bytes() + offset, n});
    in.moved += n;
    const std::uint64_t used = in.moved == in.total ? round_up(n, cache_line) : n;
    tail += used;
    available -= std::min(used, available);
    ring.tail.store(tail, std::memory_order_release);  // after each part, so that the sender can continue
  }
  if (tail != old_tail) shm_.wake(peer);
}

// Copies messages from the peer out of the ring, until no byte is left or the next message has to stay.
MUSTER_INLINE void shm_messages::receive_pending(int peer) {
  auto& in = in_[static_cast<std::size_t>(peer)];
  while (in.open || begin_message(peer, in)) {
    if (!in.open) continue;  // an announcement or a clear-to-send
    copy_payload(peer, in);
    if (in.moved < in.total) return;
    in.open = false;
    matcher_.on_complete(matcher_.target_of(peer));
  }
}

// ---- both ----

// Advances all peers' messages: a peer may wait for a different request than the tested one.
MUSTER_INLINE void shm_messages::progress() {
  if (shm_.marks_arrivals()) unread_peers_ |= shm_.take_arrivals();
  std::uint64_t still_unread = 0;
  for (int peer = 0; peer < shm_.size(); ++peer) {
    outgoing& out = outgoing_to(peer);
    const bool is_open = in_[static_cast<std::size_t>(peer)].open;
    if (out.sends.front() != nullptr || !out.clear_to_send.empty()) send_pending(peer);
    if (shm_.marks_arrivals() && (unread_peers_ & shm_group::arrival_bit(peer)) == 0) continue;
    const bool reads = is_open || matcher_.awaits(peer) || out.sends.awaits_clear();
    if (reads) {
      receive_pending(peer);
      if (!out.clear_to_send.empty()) send_pending(peer);
    }
    if (shm_.marks_arrivals() && (!reads || unread(peer) > 0)) still_unread |= shm_group::arrival_bit(peer);
  }
  unread_peers_ = still_unread;
  if (!has_unfinished_) return;
  has_unfinished_ = false;
  for (int peer = 0; peer < shm_.size(); ++peer) {
    const outgoing& out = outgoing_to(peer);
    has_unfinished_ = has_unfinished_ || !out.clear_to_send.empty() || out.sends.has_adopted() ||
                      matcher_.has_cleared(peer) || in_[static_cast<std::size_t>(peer)].open;
  }
}

MUSTER_INLINE void shm_messages::cancel(request& req) noexcept {
  has_unfinished_ = true;
  if (progress_of(req).receives) return matcher_.cancel(req);
  outbox& sends = outgoing_to(req.peer).sends;
  // the receiver has matched the message and needs the rest
  const bool must_finish = req.state == message_progress::moving;
  if (must_finish && sends.adopt(req) == nullptr) sever(req.peer);
  sends.drop(req);
  req.owner = nullptr;
}

}}}  // namespace muster::v0::detail
