// The infrequent operations of a link, and the transmission of large payloads.
#pragma once

#include <muster/ps/runtime/ps_link.hpp>

#include <bit>
#include <numeric>
#include <string>

#include <muster/core/copy.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

MUSTER_INLINE void frame_link::move_to(transport& over, std::vector<node_id> places) {
  close();
  over_ = &over;
  can_borrow_ = over.abilities().replaces_buffers;
  borrowed_ = stuck_ = 0;
  places_ = std::move(places);
  peers_.resize(places_.size());
  ranks_.assign(std::size_t{1} + *std::ranges::max_element(places_), no_rank);
  for (std::size_t rank = 0; rank < places_.size(); ++rank) ranks_[places_[rank]] = static_cast<int>(rank);
  for (int i = 0; i < posted_at_once; ++i) post(std::make_unique<incoming>());
}

MUSTER_INLINE void frame_link::move_to(transport& over) {
  std::vector<node_id> places(static_cast<std::size_t>(over.size()));
  std::iota(places.begin(), places.end(), node_id{0});
  move_to(over, std::move(places));
}

MUSTER_INLINE void frame_link::release(range_id range, std::uint64_t number) {
  if (borrowed_ == 0) return;
  for (auto& peer : peers_) {
    for (auto& frame : peer.in_flight) {
      if (!frame->borrowed || frame->range != range || frame->number > number) continue;
      frame->borrowed = false;
      --borrowed_;
      request& payload = frame->body;
      if (over_->test(payload)) continue;
      frame->memory = take_memory(payload.bytes);
      muster::detail::copy_bytes(frame->memory.data(), payload.data, payload.bytes);
      // Borrowing requires that the transport can do this. It fails only if the message was sent meanwhile.
      if (auto* const holder = payload.owning_transport(); holder != nullptr)
        (void)holder->replace_buffer(payload, frame->memory.data());
    }
  }
}

MUSTER_INLINE void frame_link::abandon_target(const std::byte* target) {
  for (auto& peer : peers_) {
    for (auto& expected : peer.arriving) {
      auto* const holder = expected->r.owning_transport();
      if (!expected->started || expected->r.data != target || holder == nullptr) continue;
      expected->memory = take_memory(expected->r.bytes);
      // A target requires that the transport can do this. It fails only if the whole payload arrived meanwhile.
      if (!holder->replace_buffer(expected->r, expected->memory.data())) recycle_memory(std::move(expected->memory));
    }
  }
}

MUSTER_INLINE void frame_link::find_lost(
    clock::duration patience, const std::function<void(int rank, bool may_return, const char* reason)>& on_lost) {
  control_message event;
  while (over_->poll(event)) {
    const bool ended = event.type == control_message::kind::peer_ended || event.type == control_message::kind::abort;
    const int origin = event.origin;
    if (!ended || static_cast<std::size_t>(origin) >= peers_.size() || peer_at(origin).is_lost) continue;
    drop_in_flight(origin);
    const bool may_return = event.type == control_message::kind::peer_ended && patience > clock::duration::zero() &&
                            over_->reconnect(origin, clock::now() + patience);
    if (may_return)
      log(log_level::info, std::string(event.text) + ": it will be connected again if it lives");
    else
      forget(origin);
    on_lost(origin, may_return, event.text);
  }
}

MUSTER_INLINE void frame_link::forget(int rank) {
  drop_in_flight(rank);
  auto& peer = peer_at(rank);
  peer.is_lost = true;
  peer.open.reset();
  // The dead process may have begun a message into one posted receive, which then never completes. No receive is
  // cancelled, because messages that other processes have begun would be lost too, and their payloads would not fit
  // their frames. Therefore one more receive is posted.
  ++stuck_;
  post(std::make_unique<incoming>());
}

MUSTER_INLINE void frame_link::send_payload(outgoing& frame, int rank, const message& msg, bool borrowed) {
  frame.large = true;
  frame.borrowed = borrowed;
  borrowed_ += borrowed ? 1 : 0;
  frame.range = msg.range;
  frame.number = msg.number;
  if (!borrowed) {
    frame.memory = take_memory(msg.payload.size());
    muster::detail::copy_bytes(frame.memory.data(), msg.payload.data(), msg.payload.size());
  }
  // A send only reads, although a request holds a pointer to mutable memory.
  start(frame.body, rank, payload_tag + 1 + peer_at(rank).payloads_sent++ % payload_numbers,
        borrowed ? const_cast<std::byte*>(msg.payload.data()) : frame.memory.data(), msg.payload.size());
}

MUSTER_INLINE void frame_link::start_receives(neighbour& sender, int rank) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < sender.arriving.size(); ++i) {
    arrival& arriving = *sender.arriving[i];
    bytes += arriving.r.bytes;
    if (i >= arrivals_at_once && bytes > arriving_bytes) return;
    if (std::exchange(arriving.started, true)) continue;
    if (can_borrow_ && target_lookup_)
      arriving.r.data = target_lookup_(*decode_message(std::span(arriving.head).last<message_head_bytes>()));
    if (arriving.r.data == nullptr) {
      arriving.memory = take_memory(arriving.r.bytes);
      arriving.r.data = arriving.memory.data();
    }
    arriving.r.peer = rank;
    over_->receive(arriving.r);
  }
}

MUSTER_INLINE void frame_link::drop_in_flight(int rank) {
  auto& peer = peer_at(rank);
  borrowed_ -= static_cast<std::size_t>(
      std::ranges::count_if(peer.in_flight, [](const auto& frame) { return frame->borrowed; }));
  peer.in_flight.clear();
  peer.arriving.clear();
  for (auto& frame : posted_) {  // also ignore announced payloads in frames that have arrived
    if (frame->r.owning_transport() != nullptr || frame->r.source != rank) continue;
    const auto head = decode_head(std::span<const std::byte>(frame->data.data(), frame->r.received));
    if (head && head->payload_number != 0) frame->r.received = 0;
  }
}

MUSTER_INLINE buffer<std::byte> frame_link::take_memory(std::size_t bytes) {
  const auto fits = [&](const auto& unused) { return unused.size() >= bytes; };
  const auto found = std::ranges::find_if(spare_, fits);
  if (found == spare_.end()) return buffer<std::byte>(std::bit_ceil(bytes));
  auto memory = std::move(*found);
  spare_.erase(found);
  return memory;
}

MUSTER_INLINE void frame_link::recycle_memory(buffer<std::byte> memory) {
  if (memory.size() == 0) return;
  const auto larger = [&](const auto& unused) { return unused.size() > memory.size(); };
  spare_.insert(std::ranges::find_if(spare_, larger), std::move(memory));  // sorted by size
  if (spare_.size() > most_spare) spare_.erase(spare_.begin());
}

}}}  // namespace muster::v0::ps::detail
