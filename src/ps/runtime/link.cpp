#include "link.hpp"

#include <algorithm>
#include <bit>

#include <muster/core/log.hpp>

#include "../../core/copy.hpp"

namespace muster::inline v0::ps::detail {
namespace {

constexpr int posted_at_once = 8;
// From one place: one is worked on while another comes, and small ones come without a pause between them.
constexpr std::size_t arrivals_at_once = 2;
constexpr std::size_t arriving_bytes = std::size_t{1} << 20;
constexpr std::uint32_t payload_numbers = 64;  // more than are ever under way between two: none is taken for another
constexpr std::size_t most_free = 64;
constexpr std::size_t most_spare = 4;

}  // namespace

frame_link::frame_link(transport& over)
    : over_(over), peers_(static_cast<std::size_t>(over.size())), lends_(over.abilities().moves_buffers) {
  for (int i = 0; i < posted_at_once; ++i) post(std::make_unique<incoming>());
}

// ---- out ----

void frame_link::send(const member& who, const message& what, bool lent) {
  const node_id to = who.at;
  if (to >= peers_.size() || peers_[to].gone) return;
  auto& peer = peers_[to];
  const std::size_t whole = encoded_bytes(what.payload.size());
  const bool large = whole > frame_limit - frame_head_bytes;
  const std::size_t size = large ? message_head_bytes : whole;
  if (peer.open && (peer.open->used + size > frame_limit || peer.incarnation != who.incarnation)) ship(to);
  peer.incarnation = who.incarnation;
  if (!peer.open && free_.empty()) peer.open = std::make_unique<outgoing>();
  if (!peer.open) {
    peer.open = std::move(free_.back());
    free_.pop_back();
  }
  auto& frame = *peer.open;
  if (frame.used == 0) frame.used = frame_head_bytes;  // the head is written when it leaves
  std::byte* const at = frame.data.data() + frame.used;
  frame.used += size;
  ++frame.words;
  if (!large) return encode(what, at);
  encode_head(what, what.payload.size(), at);
  attach(frame, to, what, lent && lends_);
  ship(to);
}

void frame_link::ship(node_id to) {
  auto& peer = peers_[to];
  if (!peer.open) return;
  head_.to = peer.incarnation;
  head_.apart = peer.open->large ? static_cast<std::uint16_t>(peer.open->body.tag - payload_tag) : std::uint16_t{0};
  encode(head_, peer.open->data.data());
  start(peer.open->r, to, frame_tag, peer.open->data.data(), peer.open->used);
  if (peer.flying.empty()) flying_to_.push_back(to);
  peer.flying.push_back(std::move(peer.open));
}

void frame_link::ship() {
  for (node_id to = 0; to < peers_.size(); ++to) ship(to);
}

void frame_link::start(request& r, node_id to, std::uint32_t tag, std::byte* data, std::size_t bytes) {
  r.data = data;
  r.bytes = bytes;
  r.peer = static_cast<int>(to);
  r.tag = tag;
  over_.send(r);
}

void frame_link::advance() {
  std::erase_if(flying_to_, [&](node_id to) {
    auto& flying = peers_[to].flying;
    while (!flying.empty() && over_.test(flying.front()->r) &&
           (!flying.front()->large || over_.test(flying.front()->body))) {
      recycle(std::move(flying.front()));
      flying.pop_front();
    }
    return flying.empty();
  });
}

void frame_link::recycle(std::unique_ptr<outgoing> frame) {
  lent_ -= std::exchange(frame->lent, false) ? 1 : 0;
  if (std::exchange(frame->large, false)) keep(std::move(frame->own));
  frame->used = 0;
  frame->words = 0;
  if (free_.size() < most_free) free_.push_back(std::move(frame));
}

// Whether something is done that this link has not looked at: a test of one request moves all, and the transport does
// not know which of them its caller has in mind when it sleeps.
bool frame_link::has_news() const noexcept {
  const auto done = [](const request& r) { return r.held_by() == nullptr; };
  const auto left = [&](node_id to) {
    const auto& first = *peers_[to].flying.front();
    return done(first.r) && (!first.large || done(first.body));
  };
  const auto came = [&](node_id from) { return done(peers_[from].arriving.front()->r); };
  return std::any_of(posted_.begin(), posted_.begin() + static_cast<std::ptrdiff_t>(stuck_ + 1),
                     [&](const auto& one) { return done(one->r); }) ||
         std::ranges::any_of(flying_to_, left) || std::ranges::any_of(arriving_from_, came);
}

bool frame_link::is_idle() {
  advance();
  return flying_to_.empty();
}

// ---- large payloads, out ----

void frame_link::attach(outgoing& frame, node_id to, const message& what, bool lent) {
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
  start(frame.body, to, payload_tag + 1 + peers_[to].large++ % payload_numbers,
        lent ? const_cast<std::byte*>(what.payload.data()) : frame.own.data(), what.payload.size());
}

void frame_link::give_back(range_id range, std::uint64_t number) {
  if (lent_ == 0) return;
  for (const node_id to : flying_to_) {
    for (auto& one : peers_[to].flying) {
      if (!one->lent || one->range != range || one->number > number) continue;
      one->lent = false;
      --lent_;
      request& r = one->body;
      if (over_.test(r)) continue;
      one->own = room_for(r.bytes);
      muster::detail::copy_bytes(one->own.data(), r.data, r.bytes);
      // It can, else nothing is lent; unless the message has gone meanwhile.
      if (auto* const held = r.held_by(); held != nullptr) (void)held->move_buffer(r, one->own.data());
    }
  }
}

void frame_link::close() noexcept {
  peers_.clear();
  posted_.clear();
}

// ---- in ----

void frame_link::post(std::unique_ptr<incoming> one) {
  one->r.tag = frame_tag;
  one->r.peer = any_source;
  one->r.data = one->data.data();
  one->r.bytes = one->data.size();
  over_.receive(one->r);
  posted_.push_back(std::move(one));
}

std::unique_ptr<frame_link::incoming> frame_link::take_posted(std::size_t at) {
  auto one = std::move(posted_[at]);
  posted_.erase(posted_.begin() + static_cast<std::ptrdiff_t>(at));
  return one;
}

// The frame without the head of a message: the payload comes by itself.
std::span<const std::byte> frame_link::announced(const incoming& one) {
  const std::span<const std::byte> frame(one.data.data(), one.r.received);
  const auto head = decode_head(frame);
  if (!head || head->apart == 0 || frame.size() < frame_head_bytes + message_head_bytes) return frame;
  const auto last = frame.last<message_head_bytes>();
  const auto said = decode_message(last);
  const auto from = static_cast<node_id>(one.r.source);
  auto& peer = peers_[from];
  if (said && !peer.gone) {
    auto made = std::make_unique<arrival>();
    std::ranges::copy(frame.first<frame_head_bytes>(), made->head.begin());
    std::ranges::copy(last, made->head.begin() + frame_head_bytes);
    made->r.bytes = said->bytes;
    made->r.tag = payload_tag + head->apart;
    if (peer.arriving.empty()) arriving_from_.push_back(from);
    peer.arriving.push_back(std::move(made));
    begin_arrivals(peer, from);
  }
  return frame.first(frame.size() - message_head_bytes);
}

// The next of them may come now.
void frame_link::begin_arrivals(neighbour& from, node_id at) {
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
    one.r.peer = static_cast<int>(at);
    over_.receive(one.r);
  }
}

// One that is there, which leaves the list.
std::unique_ptr<frame_link::arrival> frame_link::take_arrival() {
  for (const node_id from : arriving_from_) {
    auto& peer = peers_[from];
    if (!over_.test(peer.arriving.front()->r)) continue;
    auto come = std::move(peer.arriving.front());
    peer.arriving.pop_front();
    begin_arrivals(peer, from);
    if (peer.arriving.empty()) std::erase(arriving_from_, from);
    return come;
  }
  return nullptr;
}

void frame_link::leave(const std::byte* node_id) {
  for (const auto from : arriving_from_) {
    for (auto& one : peers_[from].arriving) {
      auto* const held = one->r.held_by();
      if (!one->begun || one->r.data != node_id || held == nullptr) continue;
      one->own = room_for(one->r.bytes);
      // It can, else nothing has a place; unless all of the message has come there meanwhile.
      if (!held->move_buffer(one->r, one->own.data())) keep(std::move(one->own));
    }
  }
}

// ---- memory of large payloads ----

// Some that was used is taken again: the system's is filled with zeros a page at a time.
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

// ---- trouble ----

void frame_link::find_lost(clock::duration patience, const std::function<void(node_id, bool)>& tell) {
  control_message word;
  while (over_.poll(word)) {
    // A rank that says so of another may be cut off itself: its word ends nothing here.
    const bool ended =
        (word.what == control_message::kind::gone && word.witness < 0) || word.what == control_message::kind::abort;
    const auto origin = static_cast<node_id>(word.origin);
    if (!ended || origin >= peers_.size() || peers_[origin].gone) continue;
    cut(origin);
    const bool may_return =
        word.what == control_message::kind::gone && over_.renew(word.origin, clock::now() + patience);
    if (may_return)
      log(log_level::info, std::string(word.text) + ": it will be connected again if it lives");
    else
      forget(origin);
    tell(origin, may_return);
  }
}

// Nothing of what was under way between the two comes any more.
void frame_link::cut(node_id other) {
  auto& peer = peers_[other];
  lent_ -= static_cast<std::size_t>(std::ranges::count_if(peer.flying, [](const auto& one) { return one->lent; }));
  peer.flying.clear();
  peer.arriving.clear();
  std::erase(flying_to_, other);
  std::erase(arriving_from_, other);
  for (auto& one : posted_) {  // nor the payload of what has come
    if (one->r.held_by() != nullptr || one->r.source != static_cast<int>(other)) continue;
    const auto head = decode_head(std::span<const std::byte>(one->data.data(), one->r.received));
    if (head && head->apart != 0) one->r.received = 0;
  }
}

void frame_link::forget(node_id gone) {
  cut(gone);
  auto& peer = peers_[gone];
  peer.gone = true;
  peer.open.reset();
  // A receive may be in the middle of what the dead one was sending, and stay so. None is taken back: what others have
  // begun would be lost with it, and payloads follow their frames. So there is one more.
  ++stuck_;
  post(std::make_unique<incoming>());
}

}  // namespace muster::inline v0::ps::detail
