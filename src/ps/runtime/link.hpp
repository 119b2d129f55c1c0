// Frames between the processes of a job, over any transport: many small words in one message, large values by
// themselves.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <muster/comm/transport.hpp>
#include <muster/core/buffer.hpp>

#include "../protocol/message.hpp"

namespace muster::inline v0::ps::detail {

/// The tags of the parameter server's messages.
inline constexpr std::uint32_t frame_tag = 15001;
inline constexpr std::uint32_t payload_tag = 15002;  // and behind it, by `frame_head::apart`

/// Frames to one process that its transport has not taken: so many that it always has some, and so few that they are in
/// a cache when they are filled again. A sender of much asks for it.
inline constexpr std::size_t frames_at_once = 6;

/// This process' words to all others of a group, and theirs to it; places are ranks. Used by one thread.
///
/// What goes to one place waits in a frame until it is full or `ship`ped, so that small words share the cost of a
/// message. Frames keep their order. A payload that is larger than a frame follows the one that has the head of its
/// message as a message of its own, from where it lies to where it belongs; others may overtake it.
class frame_link {
 public:
  /// No frame is larger, in bytes: transports send as much unasked.
  static constexpr std::size_t frame_limit = 65536;

  explicit frame_link(transport& over);
  frame_link(const frame_link&) = delete;
  frame_link& operator=(const frame_link&) = delete;

  /// What frames say of their sender from now on.
  void introduce(const frame_head& head) noexcept { head_ = head; }
  /// The payload is taken before it returns, or `lent`: then it stays where it is until it is given back.
  void send(const member& to, const message& what, bool lent = false);
  /// Lent payloads of that range, up to that number, are their owner's again: what still goes of them goes from a copy.
  void give_back(range_id range, std::uint64_t number);
  /// Nothing is sent or comes any more: all memory is its owners'.
  void close() noexcept;
  /// Asked, when a large payload is about to come, where it belongs; null: anywhere.
  using placing = std::function<std::byte*(const message&)>;
  void place_by(placing where) { where_ = std::move(where); }
  /// What still comes there goes elsewhere: the memory is its owner's again.
  void leave(const std::byte* node_id);
  /// Sends what waits for that place, or for all.
  void ship(node_id to);
  void ship();
  /// Bytes that wait for that place in the frame to come, and frames that are not yet taken by the transport.
  [[nodiscard]] std::size_t waiting(node_id to) const noexcept { return peers_[to].open ? peers_[to].open->used : 0; }
  [[nodiscard]] std::uint32_t words(node_id to) const noexcept { return peers_[to].open ? peers_[to].open->words : 0; }
  [[nodiscard]] std::size_t under_way(node_id to) const noexcept { return peers_[to].flying.size(); }

  /// Makes progress; calls `hear(frame, apart)` for what has come, at most `most` frames: `apart` is the payload of one
  /// that is only its head. False when nothing has.
  template <class Hear>
  bool poll(const Hear& hear, int most = 8) {
    advance();
    bool any = false;
    // In the order in which they wait: only those that a dead process had begun stay for ever.
    for (std::size_t i = 0; i <= stuck_ && most > 0;) {
      if (!over_.test(posted_[i]->r)) {
        ++i;
        continue;
      }
      any = true;
      --most;
      auto one = take_posted(i);
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
    if (!has_news()) over_.pause(until);
  }
  [[nodiscard]] bool should_yield() const { return over_.should_yield(); }
  /// Calls tell(place, may_return) for each that was found since the last call to be gone, or the connection to it
  /// broken: then another is tried for `patience` before it is called gone, and what was under way between the two is
  /// lost, no more.
  void find_lost(clock::duration patience, const std::function<void(node_id, bool)>& tell);
  /// Sends nothing to it any more.
  void forget(node_id gone);
  /// Whether all that was sent is out of this process' hands.
  [[nodiscard]] bool is_idle();

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

  void advance();
  [[nodiscard]] bool has_news() const noexcept;
  void start(request& r, node_id to, std::uint32_t tag, std::byte* data, std::size_t bytes);
  void attach(outgoing& frame, node_id to, const message& what, bool lent);
  void recycle(std::unique_ptr<outgoing> frame);
  void post(std::unique_ptr<incoming> one);
  [[nodiscard]] std::unique_ptr<incoming> take_posted(std::size_t at);
  [[nodiscard]] std::span<const std::byte> announced(const incoming& one);
  void begin_arrivals(neighbour& from, node_id at);
  [[nodiscard]] std::unique_ptr<arrival> take_arrival();
  void cut(node_id other);
  buffer<std::byte> room_for(std::size_t bytes);
  void keep(buffer<std::byte> memory);

  transport& over_;
  frame_head head_;
  std::vector<neighbour> peers_;
  std::vector<node_id> flying_to_;
  std::vector<node_id> arriving_from_;
  std::size_t lent_ = 0;  // payloads under way
  bool lends_;            // the transport can give back what it was lent
  placing where_;
  std::vector<std::unique_ptr<outgoing>> free_;
  std::deque<std::unique_ptr<incoming>> posted_;  // in the order in which they wait
  std::size_t stuck_ = 0;                         // of these, at most: the dead may have begun one
  std::vector<buffer<std::byte>> spare_;          // memory of large payloads
};

}  // namespace muster::inline v0::ps::detail
