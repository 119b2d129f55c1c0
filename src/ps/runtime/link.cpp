// What is rare at a link, and what large payloads need.
#include "link.hpp"

#include <bit>
#include <numeric>
#include <string>

#include <muster/core/log.hpp>

#include "../../core/copy.hpp"

namespace muster { inline namespace v0 { namespace ps::detail {

void frame_link::move_to(transport& over, std::vector<node_id> places) {
  close();
  over_ = &over;
  lends_ = over.abilities().moves_buffers;
  lent_ = stuck_ = 0;
  places_ = std::move(places);
  peers_.resize(places_.size());
  ranks_.assign(std::size_t{1} + *std::ranges::max_element(places_), no_rank);
  for (std::size_t rank = 0; rank < places_.size(); ++rank) ranks_[places_[rank]] = static_cast<int>(rank);
  for (int i = 0; i < posted_at_once; ++i) post(std::make_unique<incoming>());
}

void frame_link::move_to(transport& over) {
  std::vector<node_id> places(static_cast<std::size_t>(over.size()));
  std::iota(places.begin(), places.end(), node_id{0});
  move_to(over, std::move(places));
}

void frame_link::give_back(range_id range, std::uint64_t number) {
  if (lent_ == 0) return;
  for (auto& peer : peers_) {
    for (auto& one : peer.flying) {
      if (!one->lent || one->range != range || one->number > number) continue;
      one->lent = false;
      --lent_;
      request& r = one->body;
      if (over_->test(r)) continue;
      one->own = room_for(r.bytes);
      muster::detail::copy_bytes(one->own.data(), r.data, r.bytes);
      // It can, else nothing is lent; unless the message has gone meanwhile.
      if (auto* const held = r.held_by(); held != nullptr) (void)held->move_buffer(r, one->own.data());
    }
  }
}

void frame_link::leave(const std::byte* place) {
  for (auto& peer : peers_) {
    for (auto& one : peer.arriving) {
      auto* const held = one->r.held_by();
      if (!one->begun || one->r.data != place || held == nullptr) continue;
      one->own = room_for(one->r.bytes);
      // It can, else nothing has a place; unless all of the message has come there meanwhile.
      if (!held->move_buffer(one->r, one->own.data())) keep(std::move(one->own));
    }
  }
}

void frame_link::find_lost(clock::duration patience, const std::function<void(int, bool, const char*)>& tell) {
  control_message word;
  while (over_->poll(word)) {
    const bool ended = word.what == control_message::kind::gone || word.what == control_message::kind::abort;
    const int origin = word.origin;
    if (!ended || static_cast<std::size_t>(origin) >= peers_.size() || peer_at(origin).gone) continue;
    cut(origin);
    const bool may_return = word.what == control_message::kind::gone && patience > clock::duration::zero() &&
                            over_->renew(origin, clock::now() + patience);
    if (may_return)
      log(log_level::info, std::string(word.text) + ": it will be connected again if it lives");
    else
      forget(origin);
    tell(origin, may_return, word.text);
  }
}

void frame_link::forget(int gone) {
  cut(gone);
  auto& peer = peer_at(gone);
  peer.gone = true;
  peer.open.reset();
  // A receive may be in the middle of what the dead one was sending, and stay so. None is taken back: what others
  // have begun would be lost with it, and payloads follow their frames. So there is one more.
  ++stuck_;
  post(std::make_unique<incoming>());
}

void frame_link::attach(outgoing& frame, int to, const message& what, bool lent) {
  frame.large = true;
  frame.lent = lent;
  lent_ += lent ? 1 : 0;
  frame.range = what.range;
  frame.number = what.number;
  if (!lent) {
    frame.own = room_for(what.payload.size());
    muster::detail::copy_bytes(frame.own.data(), what.payload.data(), what.payload.size());
  }
  // A send only reads, though requests are made for both.
  start(frame.body, to, payload_tag + 1 + peer_at(to).large++ % payload_numbers,
        lent ? const_cast<std::byte*>(what.payload.data()) : frame.own.data(), what.payload.size());
}

void frame_link::begin_arrivals(neighbour& from, int at) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < from.arriving.size(); ++i) {
    arrival& one = *from.arriving[i];
    bytes += one.r.bytes;
    if (i >= arrivals_at_once && bytes > arriving_bytes) return;
    if (std::exchange(one.begun, true)) continue;
    if (lends_ && where_) one.r.data = where_(*decode_message(std::span(one.head).last<message_head_bytes>()));
    if (one.r.data == nullptr) {
      one.own = room_for(one.r.bytes);
      one.r.data = one.own.data();
    }
    one.r.peer = at;
    over_->receive(one.r);
  }
}

void frame_link::cut(int other) {
  auto& peer = peer_at(other);
  lent_ -= static_cast<std::size_t>(std::ranges::count_if(peer.flying, [](const auto& one) { return one->lent; }));
  peer.flying.clear();
  peer.arriving.clear();
  for (auto& one : posted_) {  // nor the payload of what has come
    if (one->r.held_by() != nullptr || one->r.source != other) continue;
    const auto head = decode_head(std::span<const std::byte>(one->data.data(), one->r.received));
    if (head && head->apart != 0) one->r.received = 0;
  }
}

buffer<std::byte> frame_link::room_for(std::size_t bytes) {
  const auto fits = [&](const auto& one) { return one.size() >= bytes; };
  const auto found = std::ranges::find_if(spare_, fits);
  if (found == spare_.end()) return buffer<std::byte>(std::bit_ceil(bytes));
  auto made = std::move(*found);
  spare_.erase(found);
  return made;
}

void frame_link::keep(buffer<std::byte> memory) {
  if (memory.size() == 0) return;
  const auto larger = [&](const auto& one) { return one.size() > memory.size(); };
  spare_.insert(std::ranges::find_if(spare_, larger), std::move(memory));  // the smallest first
  if (spare_.size() > most_spare) spare_.erase(spare_.begin());
}

}}}  // namespace muster::v0::ps::detail
