#include "link.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace muster::inline v0::ps::detail {
namespace {

constexpr int posted_at_once = 8;
constexpr int parts_at_once = 2;
constexpr std::size_t most_free = 64;
constexpr std::uint64_t largest_frame = most_payload + 4096;

}  // namespace

frame_link::frame_link(any_transport& over) : over_(over), peers_(static_cast<std::size_t>(over.size())) {
  post(posted_, frame_tag, posted_at_once);
  post(parts_, part_tag, parts_at_once);
}

// ---- out ----

std::unique_ptr<frame_link::outgoing> frame_link::fresh() {
  if (free_.empty()) return std::make_unique<outgoing>();
  auto made = std::move(free_.back());
  free_.pop_back();
  made->used = 0;
  return made;
}

void frame_link::send(const member& who, const message& what) {
  const place to = who.at;
  if (to >= peers_.size() || peers_[to].gone) return;
  auto& peer = peers_[to];
  const std::size_t size = encoded_bytes(what.payload.size());
  if (size > frame_limit - frame_head_bytes) return send_large(who, what);
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
  start(to, std::move(peer.open), frame_tag);
}

void frame_link::ship() {
  for (place to = 0; to < peers_.size(); ++to) ship(to);
}

void frame_link::start(place to, std::unique_ptr<outgoing> frame, std::uint32_t tag) {
  auto& peer = peers_[to];
  request& r = frame->r;
  r.data = frame->data.data();
  r.bytes = frame->used;
  r.peer = static_cast<int>(to);
  r.tag = tag;
  over_.send(r);
  if (peer.flying.empty()) flying_to_.push_back(to);
  peer.flying.push_back(std::move(frame));
}

void frame_link::advance() {
  std::erase_if(flying_to_, [&](place to) {
    auto& flying = peers_[to].flying;
    while (!flying.empty() && over_.test(flying.front()->r)) {
      if (free_.size() < most_free) free_.push_back(std::move(flying.front()));
      flying.pop_front();
    }
    return flying.empty();
  });
}

// Whether something is done that nobody has looked at: a test of one request moves all, and the transport does not know
// which of them its caller has in mind when it sleeps.
bool frame_link::has_news() const noexcept {
  const auto done = [](const auto& queue) { return queue.front()->r.owner == nullptr; };
  return done(posted_) || done(parts_) ||
         std::any_of(flying_to_.begin(), flying_to_.end(), [&](place to) { return done(peers_[to].flying); });
}

bool frame_link::is_idle() {
  advance();
  return flying_to_.empty();
}

// Cut from where it lies, without a whole of its own.
void frame_link::send_large(const member& who, const message& what) {
  const place to = who.at;
  ship(to);  // what came before goes before
  head_.to = who.incarnation;
  std::array<std::byte, frame_head_bytes + message_head_bytes> head;
  encode(head_, std::span(head).first<frame_head_bytes>());
  encode_head(what, what.payload.size(), head.data() + frame_head_bytes);
  const std::array<std::byte, payload_alignment> zeros{};
  const std::size_t end = frame_head_bytes + encoded_bytes(what.payload.size());
  const std::span<const std::byte> pieces[] = {head, what.payload,
                                               std::span(zeros).first(end - head.size() - what.payload.size())};
  const std::uint64_t number = next_large_++;
  const auto* piece = std::begin(pieces);
  std::size_t taken = 0;  // of the piece
  for (std::size_t offset = 0; offset < end;) {
    auto part = fresh();
    const part_head begins{number, end, offset, 0};
    std::memcpy(part->data.data(), &begins, sizeof begins);
    part->used = sizeof begins;
    while (offset < end && part->used < frame_limit) {
      const std::size_t size = std::min(piece->size() - taken, frame_limit - part->used);
      if (size > 0) std::memcpy(part->data.data() + part->used, piece->data() + taken, size);
      part->used += size;
      offset += size;
      taken += size;
      if (taken == piece->size()) {
        ++piece;
        taken = 0;
      }
    }
    start(to, std::move(part), part_tag);
  }
}

// ---- in ----

void frame_link::post(std::deque<std::unique_ptr<incoming>>& to, std::uint32_t tag, int count) {
  for (int i = 0; i < count; ++i) {
    auto one = std::make_unique<incoming>();
    one->r.tag = tag;
    to.push_back(std::move(one));
    to.back()->r.peer = any_source;
    to.back()->r.data = to.back()->data.data();
    to.back()->r.bytes = frame_limit;
    over_.receive(to.back()->r);
  }
}

// The first of them was heard: it waits again, behind the others.
void frame_link::repost(std::deque<std::unique_ptr<incoming>>& in) {
  auto one = std::move(in.front());
  in.pop_front();
  one->r.peer = any_source;
  one->r.bytes = frame_limit;
  over_.receive(one->r);
  in.push_back(std::move(one));
}

// The parts of one frame come in their order; what does not fit is dropped, and will be said again.
const std::vector<std::byte>* frame_link::take_part(const incoming& part) {
  part_head head;
  const std::size_t size = part.r.received;
  if (size <= sizeof head) return nullptr;
  std::memcpy(&head, part.data.data(), sizeof head);
  auto& from = peers_[static_cast<std::size_t>(part.r.source)];
  if (head.offset == 0) {
    if (head.total > largest_frame) return nullptr;
    from.coming = head.number;
    from.come = 0;
    from.large.resize(head.total);
  }
  const std::size_t bytes = size - sizeof head;
  if (head.number != from.coming || head.offset != from.come || head.total != from.large.size() ||
      bytes > from.large.size() - from.come)
    return nullptr;
  std::memcpy(from.large.data() + from.come, part.data.data() + sizeof head, bytes);
  from.come += bytes;
  return from.come == from.large.size() ? &from.large : nullptr;
}

// ---- trouble ----

place frame_link::find_gone() {
  notice word;
  while (over_.poll(word)) {
    // Whoever says so of another may be cut off itself: its word ends nothing here.
    const bool ended = (word.what == notice::kind::gone && word.witness < 0) || word.what == notice::kind::abort;
    const auto origin = static_cast<place>(word.origin);
    if (!ended || origin >= peers_.size() || peers_[origin].gone) continue;
    forget(origin);
    return origin;
  }
  return nobody;
}

void frame_link::forget(place gone) {
  auto& peer = peers_[gone];
  peer.gone = true;
  peer.open.reset();
  peer.flying.clear();
  std::erase(flying_to_, gone);
  // A receive may be in the middle of what the dead one was sending. All are taken back; what is lost of others by that
  // is said again.
  for (auto* const in : {&posted_, &parts_}) {
    const auto tag = in->front()->r.tag;
    const auto count = static_cast<int>(in->size());
    in->clear();
    post(*in, tag, count);
  }
}

}  // namespace muster::inline v0::ps::detail
