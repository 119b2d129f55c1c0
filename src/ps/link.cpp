#include "link.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include <muster/core/log.hpp>

#include "../core/copy.hpp"

namespace muster::inline v0::ps::detail {
namespace {

constexpr int posted_at_once = 8;
constexpr int announcements_at_once = 4;
// From one place: one is worked on while another comes, and small ones come without a pause between them.
constexpr std::size_t arrivals_at_once = 2;
constexpr std::size_t arriving_bytes = std::size_t{1} << 20;
constexpr std::size_t most_free = 64;
constexpr std::size_t most_spare = 4;

}  // namespace

frame_link::frame_link(transport& over)
    : over_(over), peers_(static_cast<std::size_t>(over.size())), lends_(over.abilities().moves_buffers) {
  post(posted_, frame_tag, frame_limit, posted_at_once);
  post(announcements_, announcement_tag, sizeof(announcement), announcements_at_once);
}

// ---- out ----

std::unique_ptr<frame_link::outgoing> frame_link::fresh() {
  if (free_.empty()) return std::make_unique<outgoing>();
  auto made = std::move(free_.back());
  free_.pop_back();
  made->used = 0;
  return made;
}

void frame_link::send(const member& who, const message& what, bool lent) {
  const place to = who.at;
  if (to >= peers_.size() || peers_[to].gone) return;
  auto& peer = peers_[to];
  const std::size_t size = encoded_bytes(what.payload.size());
  if (size > frame_limit - frame_head_bytes) return send_large(who, what, lent && lends_);
  if (peer.open && (peer.open->used + size > frame_limit || peer.incarnation != who.incarnation)) ship(to);
  peer.incarnation = who.incarnation;
  if (!peer.open) {
    peer.open = fresh();
    peer.open->used = frame_head_bytes;  // the head is written when it leaves
    peer.words = 0;
  }
  encode(what, peer.open->data.data() + peer.open->used);
  peer.open->used += size;
  ++peer.words;
}

void frame_link::ship(place to) {
  auto& peer = peers_[to];
  if (!peer.open) return;
  head_.to = peer.incarnation;
  encode(head_, peer.open->data.span().first<frame_head_bytes>());
  start(to, std::move(peer.open));
}

void frame_link::ship() {
  for (place to = 0; to < peers_.size(); ++to) ship(to);
}

void frame_link::start(place to, std::unique_ptr<outgoing> frame) {
  request& r = frame->r;
  r.data = frame->data.data();
  r.bytes = frame->used;
  r.peer = static_cast<int>(to);
  r.tag = frame_tag;
  over_.send(r);
  takes_off(to);
  peers_[to].flying.push_back(std::move(frame));
}

// Something goes there from now on.
void frame_link::takes_off(place to) {
  if (under_way(to) == 0) flying_to_.push_back(to);
}

void frame_link::advance() {
  std::erase_if(flying_to_, [&](place to) {
    auto& flying = peers_[to].flying;
    auto& leaving = peers_[to].leaving;
    while (!flying.empty() && over_.test(flying.front()->r)) {
      if (free_.size() < most_free) free_.push_back(std::move(flying.front()));
      flying.pop_front();
    }
    while (!leaving.empty() && over_.test(leaving.front()->announced) && over_.test(leaving.front()->body)) {
      lent_ -= leaving.front()->lent ? 1 : 0;
      keep(std::move(leaving.front()->own));
      leaving.pop_front();
    }
    return flying.empty() && leaving.empty();
  });
}

// Whether something is done that nobody has looked at: a test of one request moves all, and the transport does not know
// which of them its caller has in mind when it sleeps.
bool frame_link::has_news() const noexcept {
  const auto done = [](const request& r) { return r.owner == nullptr; };
  const auto left = [&](place to) {
    const auto& peer = peers_[to];
    return (!peer.flying.empty() && done(peer.flying.front()->r)) ||
           (!peer.leaving.empty() && done(peer.leaving.front()->announced) && done(peer.leaving.front()->body));
  };
  const auto came = [&](place from) { return done(peers_[from].arriving.front()->r); };
  return done(posted_.front()->r) ||
         std::ranges::any_of(announcements_, [&](const auto& one) { return done(one->r); }) ||
         std::ranges::any_of(flying_to_, left) || std::ranges::any_of(arriving_from_, came);
}

bool frame_link::is_idle() {
  advance();
  return flying_to_.empty();
}

// ---- large payloads, out ----

void frame_link::send_large(const member& who, const message& what, bool lent) {
  const place to = who.at;
  ship(to);  // what came before goes before
  auto made = std::make_unique<departure>();
  made->range = what.range;
  made->number = what.number;
  made->lent = lent;
  head_.to = who.incarnation;
  encode(head_, std::span(made->head).first<frame_head_bytes>());
  encode_head(what, what.payload.size(), made->head.data() + frame_head_bytes);
  if (!lent) {
    made->own = room_for(what.payload.size());
    muster::detail::copy_bytes(made->own.data(), what.payload.data(), what.payload.size());
  }
  const auto start = [&](request& r, std::uint32_t tag, std::byte* data, std::size_t bytes) {
    r.data = data;
    r.bytes = bytes;
    r.peer = static_cast<int>(to);
    r.tag = tag;
    over_.send(r);
  };
  // A send only reads, though requests are made for both.
  start(made->body, payload_tag, lent ? const_cast<std::byte*>(what.payload.data()) : made->own.data(),
        what.payload.size());
  start(made->announced, announcement_tag, made->head.data(), made->head.size());
  takes_off(to);
  lent_ += lent ? 1 : 0;
  peers_[to].leaving.push_back(std::move(made));
}

template <class Change>
void frame_link::for_each_lent(const Change& change) {
  if (lent_ == 0) return;
  for (const place to : flying_to_) {
    for (auto& one : peers_[to].leaving) {
      if (one->lent) change(*one);
    }
  }
}

void frame_link::give_back(departure& one) {
  one.lent = false;
  --lent_;
  if (over_.test(one.body)) return;
  one.own = room_for(one.body.bytes);
  muster::detail::copy_bytes(one.own.data(), one.body.data, one.body.bytes);
  (void)one.body.owner->move_buffer(one.body, one.own.data());  // it can: else nothing is lent
}

void frame_link::give_back(range_id range, std::uint64_t number) {
  for_each_lent([&](departure& one) {
    if (one.range == range && one.number <= number) give_back(one);
  });
}

void frame_link::give_back() {
  for_each_lent([&](departure& one) { give_back(one); });
}

void frame_link::move_lent(range_id range, std::uint64_t number, std::span<std::byte> to) noexcept {
  for_each_lent([&](departure& one) {
    request& r = one.body;
    if (one.range == range && one.number == number && r.owner != nullptr) (void)r.owner->move_buffer(r, to.data());
  });
}

// ---- in ----

void frame_link::post(std::deque<std::unique_ptr<incoming>>& to, std::uint32_t tag, std::size_t bytes, int count) {
  for (int i = 0; i < count; ++i) {
    to.push_back(std::make_unique<incoming>(bytes));
    request& r = to.back()->r;
    r.tag = tag;
    r.peer = any_source;
    r.data = to.back()->data.data();
    r.bytes = bytes;
    over_.receive(r);
  }
}

// The first of them was heard: it waits again, behind the others.
void frame_link::repost(std::deque<std::unique_ptr<incoming>>& in) {
  auto one = std::move(in.front());
  in.pop_front();
  one->r.peer = any_source;
  one->r.bytes = one->data.size();
  over_.receive(one->r);
  in.push_back(std::move(one));
}

// ---- large payloads, in ----

// They are taken in the order in which they wait: only those that a dead process had begun stay for ever.
bool frame_link::look_for_announcements() {
  bool any = false;
  for (std::size_t i = 0; i <= stuck_;) {
    incoming& next = *announcements_[i];
    if (!over_.test(next.r)) {
      ++i;
      continue;
    }
    any = true;
    std::rotate(announcements_.begin(), announcements_.begin() + static_cast<std::ptrdiff_t>(i),
                announcements_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    const auto from = static_cast<place>(next.r.source);
    auto& peer = peers_[from];
    auto made = std::make_unique<arrival>();
    std::memcpy(made->head.data(), next.data.data(), made->head.size());
    const auto said = decode_announced(std::span(made->head).last<message_head_bytes>());
    if (next.r.received == made->head.size() && said && !peer.gone) {
      made->r.bytes = said->bytes;
      if (peer.arriving.empty()) arriving_from_.push_back(from);
      peer.arriving.push_back(std::move(made));
    }
    repost(announcements_);
  }
  if (any) {
    for (const place from : arriving_from_) begin_arrivals(peers_[from], from);
  }
  return any;
}

// The next of them may come now.
void frame_link::begin_arrivals(neighbour& from, place at) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < from.arriving.size(); ++i) {
    arrival& one = *from.arriving[i];
    bytes += one.r.bytes;
    if (i >= arrivals_at_once && bytes > arriving_bytes) return;
    if (std::exchange(one.begun, true)) continue;
    if (lends_ && where_) one.r.data = where_(*decode_announced(std::span(one.head).last<message_head_bytes>()));
    if (one.r.data == nullptr) {
      one.own = room_for(one.r.bytes);
      one.r.data = one.own.data();
    }
    one.r.peer = static_cast<int>(at);
    one.r.tag = payload_tag;
    over_.receive(one.r);
  }
}

// One that is there, which leaves the list.
std::unique_ptr<frame_link::arrival> frame_link::take_arrival() {
  for (const place from : arriving_from_) {
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

void frame_link::leave(const std::byte* place) {
  for (const auto from : arriving_from_) {
    for (auto& one : peers_[from].arriving) {
      if (!one->begun || one->r.data != place || one->r.owner == nullptr) continue;
      one->own = room_for(one->r.bytes);
      (void)one->r.owner->move_buffer(one->r, one->own.data());  // it can: else nothing has a place
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

frame_link::loss frame_link::find_lost(clock::duration patience) {
  notice word;
  while (over_.poll(word)) {
    // Whoever says so of another may be cut off itself: its word ends nothing here.
    const bool ended = (word.what == notice::kind::gone && word.witness < 0) || word.what == notice::kind::abort;
    const auto origin = static_cast<place>(word.origin);
    if (!ended || origin >= peers_.size() || peers_[origin].gone) continue;
    cut(origin);
    if (word.what == notice::kind::gone && over_.renew(word.origin, clock::now() + patience)) {
      log(log_level::info, std::string(word.text) + ": it is connected again if it lives");
      return {origin, true};
    }
    forget(origin);
    return {origin};
  }
  return {};
}

// Nothing of what was under way between the two comes any more.
void frame_link::cut(place other) {
  auto& peer = peers_[other];
  peer.flying.clear();
  lent_ -= static_cast<std::size_t>(std::ranges::count_if(peer.leaving, [](const auto& one) { return one->lent; }));
  peer.leaving.clear();
  peer.arriving.clear();
  std::erase(flying_to_, other);
  std::erase(arriving_from_, other);
  for (auto& one : announcements_) {
    if (one->r.held_by() == nullptr && one->r.source == static_cast<int>(other)) one->r.received = 0;
  }
}

void frame_link::forget(place gone) {
  cut(gone);
  auto& peer = peers_[gone];
  peer.gone = true;
  peer.open.reset();
  // A receive may be in the middle of what the dead one was sending. All are taken back; what is lost of others by that
  // is said again. Of announcements none may be lost, since payloads follow in their order: there is one more.
  const auto count = static_cast<int>(posted_.size());
  posted_.clear();
  post(posted_, frame_tag, frame_limit, count);
  ++stuck_;
  post(announcements_, announcement_tag, sizeof(announcement), 1);
}

}  // namespace muster::inline v0::ps::detail
