// Frames between the processes of a job, over any transport: many small words in one message, large values by
// themselves.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <muster/comm/transport.hpp>
#include <muster/core/buffer.hpp>

#include "../../core/scheduling.hpp"
#include "../protocol/message.hpp"

namespace muster { inline namespace v0 { namespace ps::detail {

/// The tags of the parameter server's messages.
inline constexpr std::uint32_t frame_tag = 15001;
inline constexpr std::uint32_t payload_tag = 15002;  // and behind it, by `frame_head::apart`

/// Frames to one process that its transport has not taken: so many that it always has some, and so few that they are in
/// a cache when they are filled again. A sender of much asks for it.
inline constexpr std::size_t frames_at_once = 6;

/// This process' words to all others of a group, and theirs to it. Places are ranks, unless `move_to` said otherwise.
/// Used by one thread.
///
/// What goes to one place waits in a frame until it is full or `ship`ped, so that small words share the cost of a
/// message. Frames keep their order. A payload that is larger than a frame follows the one that has the head of its
/// message as a message of its own, from where it lies to where it belongs; others may overtake it.
class frame_link {
 public:
  /// No frame is larger, in bytes: transports send as much unasked.
  static constexpr std::size_t frame_limit = 65536;

  /// Reaches no process until `move_to`.
  frame_link() = default;
  explicit frame_link(transport& over) { move_to(over); }

  frame_link(const frame_link&) = delete;
  frame_link& operator=(const frame_link&) = delete;

  /// Goes on over another transport, with the processes at these places, by rank. What was under way is lost, and its
  /// memory its owners'.
  void move_to(transport& over, std::vector<node_id> places);
  void move_to(transport& over);
  /// Of the processes that it reaches, by rank.
  [[nodiscard]] const std::vector<node_id>& places() const noexcept { return places_; }

  [[nodiscard]] bool reaches(node_id at) const noexcept { return rank_of(at) != no_rank; }

  /// What frames say of their sender from now on.
  void introduce(const frame_head& head) noexcept { head_ = head; }
  /// The payload is taken before it returns, or `lent`: then it stays where it is until it is given back.
  void send(const member& node, const message& what, bool lent = false) {
    const int to = rank_of(node.at);
    if (to == no_rank || peer_at(to).gone) return;
    auto& peer = peer_at(to);
    const std::size_t whole = encoded_bytes(what.payload.size());
    const bool large = whole > frame_limit - frame_head_bytes;
    const std::size_t size = large ? message_head_bytes : whole;
    if (peer.open && (peer.open->used + size > frame_limit || peer.incarnation != node.incarnation)) ship_to(to);
    peer.incarnation = node.incarnation;
    if (!peer.open && !free_.empty()) {
      peer.open = std::move(free_.back());
      free_.pop_back();
    }
    if (!peer.open) peer.open = std::make_unique<outgoing>();
    auto& frame = *peer.open;
    if (frame.used == 0) frame.used = frame_head_bytes;  // the head is written when it leaves
    std::byte* const at = frame.data.data() + frame.used;
    frame.used += size;
    ++frame.words;
    if (!large) return encode(what, at);
    encode_head(what, what.payload.size(), at);
    attach(frame, to, what, lent && lends_);
    ship_to(to);
  }

  /// Lent payloads of that range, up to that number, are their owner's again: what still goes of them goes from a copy.
  void give_back(range_id range, std::uint64_t number);

  /// Nothing is sent or comes any more: all memory is its owners'.
  void close() noexcept {
    peers_.clear();
    posted_.clear();
  }

  /// Asked, when a large payload is about to come, where it belongs; null: anywhere.
  using placing = std::function<std::byte*(const message&)>;
  void place_by(placing where) { where_ = std::move(where); }
  /// What still comes there goes elsewhere: the memory is its owner's again.
  void leave(const std::byte* place);

  /// Sends what waits for that place, or for all.
  void ship(node_id to) {
    if (const int rank = rank_of(to); rank != no_rank) ship_to(rank);
  }

  void ship() {
    for (std::size_t to = 0; to < peers_.size(); ++to) ship_to(static_cast<int>(to));
  }

  /// Words that wait for that place in the frame to come, and frames that are not yet taken by the transport.
  [[nodiscard]] std::uint32_t words(node_id to) const noexcept {
    const auto* const peer = find(to);
    return peer != nullptr && peer->open ? peer->open->words : 0;
  }
  [[nodiscard]] std::size_t under_way(node_id to) const noexcept {
    const auto* const peer = find(to);
    return peer != nullptr ? peer->flying.size() : 0;
  }

  /// Makes progress; calls `hear(frame, apart)` for what has come, at most `most` frames: `apart` is the payload of one
  /// that is only its head. False when nothing has.
  template <class Hear>
  bool poll(const Hear& hear, int most = 8) {
    advance();
    bool any = false;
    // In the order in which they wait: only those that a dead process had begun stay for ever.
    for (std::size_t i = 0; i <= stuck_ && most > 0;) {
      if (!over_->test(posted_[i]->r)) {
        ++i;
        continue;
      }
      any = true;
      --most;
      auto one = std::move(posted_[i]);
      posted_.erase(posted_.begin() + static_cast<std::ptrdiff_t>(i));
      const auto frame = announced(*one);
      if (frame.size() > frame_head_bytes) hear(frame, std::span<const std::byte>());
      post(std::move(one));
    }
    while (const auto come = take_arrival()) {
      any = true;
      hear(std::span<const std::byte>(come->head), std::span<const std::byte>(come->r.data, come->r.received));
      keep(std::move(come->own));
    }
    return any;
  }
  /// Gives the processor away until something may have come, at the latest until then.
  void pause(clock::time_point until) {
    if (has_news()) return;
    muster::detail::shorten_slices_of_this_thread();  // the others wait for what it does when it is woken
    over_->pause(until);
  }
  [[nodiscard]] bool should_yield() const { return over_->should_yield(); }
  /// Calls tell(rank, may_return, why) for each that was found since the last call to be gone, or the connection to it
  /// broken: then another is tried for `patience`, if there is any, before it is called gone, and what was under way
  /// between the two is lost, no more.
  void find_lost(clock::duration patience, const std::function<void(int, bool, const char*)>& tell);

  /// Sends nothing to that rank any more.
  void forget(int gone);

  /// Whether all that was sent is out of this process' hands.
  [[nodiscard]] bool is_idle() {
    advance();
    return std::ranges::all_of(peers_, [](const neighbour& peer) { return peer.flying.empty(); });
  }

 private:
  // A frame, and the payload of its last message if that is large.
  struct outgoing {
    buffer<std::byte> data{frame_limit};
    std::size_t used = 0;
    std::uint32_t words = 0;
    request r;  // after the memory: it is taken back first
    bool large = false;
    bool lent = false;  // the payload
    range_id range = 0;
    std::uint64_t number = 0;
    buffer<std::byte> own;  // it lies here, or is lent
    request body;
  };
  struct incoming {
    buffer<std::byte> data{frame_limit};
    request r;
  };
  // A large payload that comes.
  struct arrival {
    std::array<std::byte, frame_head_bytes + message_head_bytes> head;
    buffer<std::byte> own;  // it goes here, or to a place that was given
    bool begun = false;
    request r;
  };
  struct neighbour {
    std::unique_ptr<outgoing> open;
    std::uint32_t incarnation = 0;  // that `open` is for
    std::deque<std::unique_ptr<outgoing>> flying;
    std::uint32_t large = 0;  // payloads that went there
    bool gone = false;
    std::deque<std::unique_ptr<arrival>> arriving;  // as they were announced, which is how they come
  };

  [[nodiscard]] int rank_of(node_id at) const noexcept { return at < ranks_.size() ? ranks_[at] : no_rank; }
  [[nodiscard]] neighbour& peer_at(int rank) noexcept { return peers_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const neighbour* find(node_id at) const noexcept {
    const int rank = rank_of(at);
    return rank == no_rank ? nullptr : &peers_[static_cast<std::size_t>(rank)];
  }

  void ship_to(int rank) {
    auto& peer = peer_at(rank);
    if (!peer.open) return;
    head_.to = peer.incarnation;
    head_.apart = peer.open->large ? static_cast<std::uint16_t>(peer.open->body.tag - payload_tag) : std::uint16_t{0};
    encode(head_, peer.open->data.data());
    start(peer.open->r, rank, frame_tag, peer.open->data.data(), peer.open->used);
    peer.flying.push_back(std::move(peer.open));
  }

  void advance() {
    for (auto& peer : peers_) {
      while (!peer.flying.empty() && over_->test(peer.flying.front()->r) &&
             (!peer.flying.front()->large || over_->test(peer.flying.front()->body))) {
        recycle(std::move(peer.flying.front()));
        peer.flying.pop_front();
      }
    }
  }

  // Whether something is done that this link has not looked at: a test of one request moves all, and the transport does
  // not know which of them its caller has in mind when it sleeps.
  [[nodiscard]] bool has_news() const noexcept {
    const auto done = [](const request& r) { return r.held_by() == nullptr; };
    const auto changed = [&](const neighbour& peer) {
      const auto* const leaves = peer.flying.empty() ? nullptr : peer.flying.front().get();
      return (leaves != nullptr && done(leaves->r) && (!leaves->large || done(leaves->body))) ||
             (!peer.arriving.empty() && done(peer.arriving.front()->r));
    };
    return std::any_of(posted_.begin(), posted_.begin() + static_cast<std::ptrdiff_t>(stuck_ + 1),
                       [&](const auto& one) { return done(one->r); }) ||
           std::ranges::any_of(peers_, changed);
  }

  void start(request& r, int to, std::uint32_t tag, std::byte* data, std::size_t bytes) {
    r.data = data;
    r.bytes = bytes;
    r.peer = to;
    r.tag = tag;
    over_->send(r);
  }

  void attach(outgoing& frame, int to, const message& what, bool lent);

  void recycle(std::unique_ptr<outgoing> frame) {
    lent_ -= std::exchange(frame->lent, false) ? 1 : 0;
    if (std::exchange(frame->large, false)) keep(std::move(frame->own));
    frame->used = 0;
    frame->words = 0;
    if (free_.size() < most_free) free_.push_back(std::move(frame));
  }

  void post(std::unique_ptr<incoming> one) {
    one->r.tag = frame_tag;
    one->r.peer = any_source;
    one->r.data = one->data.data();
    one->r.bytes = one->data.size();
    over_->receive(one->r);
    posted_.push_back(std::move(one));
  }

  // The frame without the head of a message: the payload comes by itself.
  [[nodiscard]] std::span<const std::byte> announced(const incoming& one) {
    const std::span<const std::byte> frame(one.data.data(), one.r.received);
    const auto head = decode_head(frame);
    if (!head || head->apart == 0 || frame.size() < frame_head_bytes + message_head_bytes) return frame;
    const auto last = frame.last<message_head_bytes>();
    const auto said = decode_message(last);
    const int from = one.r.source;
    auto& peer = peer_at(from);
    if (said && !peer.gone) {
      auto made = std::make_unique<arrival>();
      std::ranges::copy(frame.first<frame_head_bytes>(), made->head.begin());
      std::ranges::copy(last, made->head.begin() + frame_head_bytes);
      made->r.bytes = said->bytes;
      made->r.tag = payload_tag + head->apart;
      peer.arriving.push_back(std::move(made));
      begin_arrivals(peer, from);
    }
    return frame.first(frame.size() - message_head_bytes);
  }

  // The next of them may come now.
  void begin_arrivals(neighbour& from, int at);

  // One that is there, which leaves the list.
  [[nodiscard]] std::unique_ptr<arrival> take_arrival() {
    for (int from = 0; from < static_cast<int>(peers_.size()); ++from) {
      auto& peer = peer_at(from);
      if (peer.arriving.empty() || !over_->test(peer.arriving.front()->r)) continue;
      auto come = std::move(peer.arriving.front());
      peer.arriving.pop_front();
      begin_arrivals(peer, from);
      return come;
    }
    return nullptr;
  }

  // Nothing of what was under way between the two comes any more.
  void cut(int other);

  // Some that was used is taken again: the system's is filled with zeros a page at a time.
  [[nodiscard]] buffer<std::byte> room_for(std::size_t bytes);

  void keep(buffer<std::byte> memory);

  static constexpr int posted_at_once = 8;
  // From one place: one is worked on while another comes, and small ones come without a pause between them.
  static constexpr std::size_t arrivals_at_once = 2;
  static constexpr std::size_t arriving_bytes = std::size_t{1} << 20;
  // More than are ever under way between two: none is taken for another.
  static constexpr std::uint32_t payload_numbers = 64;
  static constexpr std::size_t most_free = 64;
  static constexpr std::size_t most_spare = 4;

  static constexpr int no_rank = -1;

  transport* over_ = nullptr;
  frame_head head_;
  std::vector<neighbour> peers_;  // by rank
  std::vector<node_id> places_;   // by rank
  std::vector<int> ranks_;        // by place
  std::size_t lent_ = 0;          // payloads under way
  bool lends_ = false;            // the transport can give back what it was lent
  placing where_;
  std::vector<std::unique_ptr<outgoing>> free_;
  std::deque<std::unique_ptr<incoming>> posted_;  // in the order in which they wait
  std::size_t stuck_ = 0;                         // of these, at most: the dead may have begun one
  std::vector<buffer<std::byte>> spare_;          // memory of large payloads
};

}}}  // namespace muster::v0::ps::detail
