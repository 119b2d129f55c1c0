// The link between the processes of a job, over any transport: several small messages in a frame, large payloads as
// separate messages.
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

#include <muster/core/scheduling.hpp>
#include <muster/ps/protocol/message.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

/// The tags of the parameter server's messages.
inline constexpr std::uint32_t frame_tag = 15001;
// The first of the tags for large payloads, see `frame_head::payload_number`.
inline constexpr std::uint32_t payload_tag = 15002;

/// Number of frames in flight to one process, for senders of many frames. The transport then always has frames to send,
/// and the frames are still in a cache when they are filled again.
inline constexpr std::size_t frames_at_once = 6;

/// The link from this process to all other processes of a group. Places are ranks, unless `move_to` changes them. Used
/// by one thread.
///
/// Messages to one place are collected in a frame until the frame is full or flushed, so that small messages share the
/// cost of a transport message. Frames arrive in order. A payload that does not fit into a frame is sent as a separate
/// transport message after the frame with its message's head, without intermediate copies. Other frames may overtake
/// the payload.
class frame_link {
 public:
  /// Maximum size of a frame in bytes. Transports send such messages eagerly.
  static constexpr std::size_t frame_limit = 65536;

  /// Constructs a link that reaches no process until `move_to`.
  frame_link() = default;
  explicit frame_link(transport& over) { move_to(over); }

  frame_link(const frame_link&) = delete;
  frame_link& operator=(const frame_link&) = delete;

  /// Replaces the transport and the places of the processes, by rank. Messages in flight are lost, and borrowed memory
  /// belongs to its owners again.
  void move_to(transport& over, std::vector<node_id> places);
  void move_to(transport& over);
  /// Returns the places of the processes, by rank.
  [[nodiscard]] const std::vector<node_id>& places() const noexcept { return places_; }

  [[nodiscard]] bool reaches(node_id node) const noexcept { return rank_of(node) != no_rank; }

  /// Sets this process' identity, which the heads of later frames carry.
  void set_identity(const frame_head& head) noexcept { head_ = head; }
  /// Sends a message. The payload is copied before `send` returns, or `borrowed`: then the caller's memory must stay
  /// unchanged until the link releases it.
  void send(const member& node, const message& msg, bool borrowed = false) {
    const int rank = rank_of(node.place);
    if (rank == no_rank || peer_at(rank).is_lost) return;
    auto& peer = peer_at(rank);
    const std::size_t total = encoded_bytes(msg.payload.size());
    const bool large = total > frame_limit - frame_head_bytes;
    const std::size_t size = large ? message_head_bytes : total;
    if (peer.open && (peer.open->used + size > frame_limit || peer.incarnation != node.incarnation)) flush_rank(rank);
    peer.incarnation = node.incarnation;
    if (!peer.open && !free_.empty()) {
      peer.open = std::move(free_.back());
      free_.pop_back();
    }
    if (!peer.open) peer.open = std::make_unique<outgoing>();
    auto& frame = *peer.open;
    if (frame.used == 0) frame.used = frame_head_bytes;  // the head is written when the frame is sent
    std::byte* const at = frame.data.data() + frame.used;
    frame.used += size;
    ++frame.messages;
    if (!large) return encode(msg, at);
    encode_head(msg, msg.payload.size(), at);
    send_payload(frame, rank, msg, borrowed && can_borrow_);
    flush_rank(rank);
  }

  /// Releases the range's borrowed payloads up to that number. The rest of their transmission uses a copy.
  void release(range_id range, std::uint64_t number);

  /// Ends all transmission. All memory belongs to its owners again.
  void close() noexcept {
    peers_.clear();
    posted_.clear();
  }

  /// A function that returns where a large payload should be received, or null for any place.
  using target_lookup = std::function<std::byte*(const message&)>;
  void set_target_lookup(target_lookup lookup) { target_lookup_ = std::move(lookup); }
  /// Stops receiving into that memory, which belongs to its owner again. The rest of the transmission uses other
  /// memory.
  void abandon_target(const std::byte* target);

  /// Sends the open frame of the node, if it has one.
  void flush_to(node_id node) {
    if (const int rank = rank_of(node); rank != no_rank) flush_rank(rank);
  }

  /// Sends the open frames of all nodes.
  void flush() {
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) flush_rank(static_cast<int>(rank));
  }

  /// Returns the number of messages in the node's open frame, which `flush_to` sends.
  [[nodiscard]] std::uint32_t queued_messages(node_id node) const noexcept {
    const auto* const peer = find(node);
    return peer != nullptr && peer->open ? peer->open->messages : 0;
  }
  /// Returns the number of frames to the node that the transport has not finished sending.
  [[nodiscard]] std::size_t frames_in_flight(node_id node) const noexcept {
    const auto* const peer = find(node);
    return peer != nullptr ? peer->in_flight.size() : 0;
  }

  /// Makes progress. Calls `on_frame(frame, payload)` for at most `most` arrived frames. `payload` is the separate
  /// payload of the frame's only message, or empty. Returns false if nothing has arrived.
  template <class Handler>
  bool poll(const Handler& on_frame, int most = 8) {
    advance();
    bool any = false;
    // The receives complete in the order of posting, except receives that a dead process had begun, which never
    // complete.
    for (std::size_t i = 0; i <= stuck_ && most > 0;) {
      if (!over_->test(posted_[i]->r)) {
        ++i;
        continue;
      }
      any = true;
      --most;
      auto received = std::move(posted_[i]);
      posted_.erase(posted_.begin() + static_cast<std::ptrdiff_t>(i));
      const auto frame = register_arrival(*received);
      if (frame.size() > frame_head_bytes) on_frame(frame, std::span<const std::byte>());
      post(std::move(received));
    }
    while (const auto arrived = take_arrival()) {
      any = true;
      on_frame(std::span<const std::byte>(arrived->head),
               std::span<const std::byte>(arrived->r.data, arrived->r.received));
      recycle_memory(std::move(arrived->memory));
    }
    return any;
  }
  /// Releases the processor until a message may have arrived, at the latest until the deadline.
  void pause(clock::time_point deadline) {
    if (has_completed_request()) return;
    muster::detail::shorten_slices_of_this_thread();  // other processes wait for the work that follows the wake-up
    over_->pause(deadline);
  }
  [[nodiscard]] bool should_yield() const { return over_->should_yield(); }
  /// Calls on_lost(rank, may_return, reason) for each process that has ended, or whose connection broke, since the last
  /// call. A broken connection is re-established if possible within `patience`, if that is positive. Then `may_return`
  /// is true, and only the messages in flight between the two processes are lost.
  void find_lost(clock::duration patience,
                 const std::function<void(int rank, bool may_return, const char* reason)>& on_lost);

  /// Stops sending to that rank.
  void forget(int rank);

  /// Returns true while a large payload is being received, or a message is being sent.
  [[nodiscard]] bool is_transferring() const noexcept {
    return std::ranges::any_of(peers_,
                               [](const neighbour& peer) { return !peer.in_flight.empty() || !peer.arriving.empty(); });
  }
  /// Returns true if the transport has finished all sends.
  [[nodiscard]] bool is_idle() {
    advance();
    return std::ranges::all_of(peers_, [](const neighbour& peer) { return peer.in_flight.empty(); });
  }

 private:
  // A frame, and its last message's payload if that payload is separate.
  struct outgoing {
    buffer<std::byte> data{frame_limit};
    std::size_t used = 0;
    std::uint32_t messages = 0;
    request r;  // declared after the memory, so that it is cancelled before the memory is freed
    bool large = false;
    bool borrowed = false;  // the payload is in the caller's memory
    range_id range = 0;
    std::uint64_t number = 0;
    buffer<std::byte> memory;  // the payload, unless it is borrowed
    request body;
  };
  struct incoming {
    buffer<std::byte> data{frame_limit};
    request r;
  };
  // A large payload in transit to this process.
  struct arrival {
    std::array<std::byte, frame_head_bytes + message_head_bytes> head;
    buffer<std::byte> memory;  // the payload's memory, unless a target was given
    bool started = false;
    request r;
  };
  struct neighbour {
    std::unique_ptr<outgoing> open;
    std::uint32_t incarnation = 0;  // the incarnation for which `open` is meant
    std::deque<std::unique_ptr<outgoing>> in_flight;
    std::uint32_t payloads_sent = 0;  // number of large payloads sent to the process
    bool is_lost = false;
    std::deque<std::unique_ptr<arrival>> arriving;  // in the order of their announcement, which is the order of arrival
  };

  [[nodiscard]] int rank_of(node_id node) const noexcept { return node < ranks_.size() ? ranks_[node] : no_rank; }
  [[nodiscard]] neighbour& peer_at(int rank) noexcept { return peers_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const neighbour* find(node_id node) const noexcept {
    const int rank = rank_of(node);
    return rank == no_rank ? nullptr : &peers_[static_cast<std::size_t>(rank)];
  }

  void flush_rank(int rank) {
    auto& peer = peer_at(rank);
    if (!peer.open) return;
    head_.receiver_incarnation = peer.incarnation;
    head_.payload_number =
        peer.open->large ? static_cast<std::uint16_t>(peer.open->body.tag - payload_tag) : std::uint16_t{0};
    encode(head_, peer.open->data.data());
    start(peer.open->r, rank, frame_tag, peer.open->data.data(), peer.open->used);
    peer.in_flight.push_back(std::move(peer.open));
  }

  void advance() {
    for (auto& peer : peers_) {
      while (!peer.in_flight.empty() && over_->test(peer.in_flight.front()->r) &&
             (!peer.in_flight.front()->large || over_->test(peer.in_flight.front()->body))) {
        recycle(std::move(peer.in_flight.front()));
        peer.in_flight.pop_front();
      }
    }
  }

  // Returns true if a request has completed that this link has not processed. Each test advances all requests, and a
  // sleeping transport does not know for which requests its caller waits.
  [[nodiscard]] bool has_completed_request() const noexcept {
    const auto done = [](const request& req) { return req.owning_transport() == nullptr; };
    const auto changed = [&](const neighbour& peer) {
      const auto* const oldest = peer.in_flight.empty() ? nullptr : peer.in_flight.front().get();
      return (oldest != nullptr && done(oldest->r) && (!oldest->large || done(oldest->body))) ||
             (!peer.arriving.empty() && done(peer.arriving.front()->r));
    };
    return std::any_of(posted_.begin(), posted_.begin() + static_cast<std::ptrdiff_t>(stuck_ + 1),
                       [&](const auto& receive) { return done(receive->r); }) ||
           std::ranges::any_of(peers_, changed);
  }

  void start(request& req, int rank, std::uint32_t tag, std::byte* data, std::size_t bytes) {
    req.data = data;
    req.bytes = bytes;
    req.peer = rank;
    req.tag = tag;
    over_->send(req);
  }

  void send_payload(outgoing& frame, int rank, const message& msg, bool borrowed);

  void recycle(std::unique_ptr<outgoing> frame) {
    borrowed_ -= std::exchange(frame->borrowed, false) ? 1 : 0;
    if (std::exchange(frame->large, false)) recycle_memory(std::move(frame->memory));
    frame->used = 0;
    frame->messages = 0;
    if (free_.size() < most_free) free_.push_back(std::move(frame));
  }

  void post(std::unique_ptr<incoming> receive) {
    receive->r.tag = frame_tag;
    receive->r.peer = any_source;
    receive->r.data = receive->data.data();
    receive->r.bytes = receive->data.size();
    over_->receive(receive->r);
    posted_.push_back(std::move(receive));
  }

  // Returns the frame. If the last message's payload is separate, registers its arrival and returns the frame without
  // that message's head.
  [[nodiscard]] std::span<const std::byte> register_arrival(const incoming& received) {
    const std::span<const std::byte> frame(received.data.data(), received.r.received);
    const auto head = decode_head(frame);
    if (!head || head->payload_number == 0 || frame.size() < frame_head_bytes + message_head_bytes) return frame;
    const auto last = frame.last<message_head_bytes>();
    const auto msg = decode_message(last);
    const int sender = received.r.source;
    auto& peer = peer_at(sender);
    if (msg && !peer.is_lost) {
      auto arriving = std::make_unique<arrival>();
      std::ranges::copy(frame.first<frame_head_bytes>(), arriving->head.begin());
      std::ranges::copy(last, arriving->head.begin() + frame_head_bytes);
      arriving->r.bytes = msg->bytes;
      arriving->r.tag = payload_tag + head->payload_number;
      peer.arriving.push_back(std::move(arriving));
      start_receives(peer, sender);
    }
    return frame.first(frame.size() - message_head_bytes);
  }

  // Starts the next receives of large payloads.
  void start_receives(neighbour& sender, int rank);

  // Returns an arrived payload and removes it from the list, or returns null.
  [[nodiscard]] std::unique_ptr<arrival> take_arrival() {
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
      auto& peer = peer_at(rank);
      if (peer.arriving.empty() || !over_->test(peer.arriving.front()->r)) continue;
      auto arrived = std::move(peer.arriving.front());
      peer.arriving.pop_front();
      start_receives(peer, rank);
      return arrived;
    }
    return nullptr;
  }

  // Drops all messages in flight to and from that process.
  void drop_in_flight(int rank);

  // Returns memory of at least this size, preferably used memory: the kernel zeroes new memory page by page.
  [[nodiscard]] buffer<std::byte> take_memory(std::size_t bytes);

  void recycle_memory(buffer<std::byte> memory);

  static constexpr int posted_at_once = 8;
  // Simultaneous receives of large payloads from one place: one payload is processed while the next arrives. Further
  // receives are started while all together have at most `arriving_bytes`.
  static constexpr std::size_t arrivals_at_once = 2;
  static constexpr std::size_t arriving_bytes = std::size_t{1} << 20;
  // More than the number of payloads in flight between two processes, so that numbers are unique.
  static constexpr std::uint32_t payload_numbers = 64;
  static constexpr std::size_t most_free = 64;
  static constexpr std::size_t most_spare = 4;

  static constexpr int no_rank = -1;

  transport* over_ = nullptr;
  frame_head head_;
  std::vector<neighbour> peers_;  // by rank
  std::vector<node_id> places_;   // by rank
  std::vector<int> ranks_;        // by place
  std::size_t borrowed_ = 0;      // number of borrowed payloads in flight
  bool can_borrow_ = false;       // the transport can release borrowed memory
  target_lookup target_lookup_;
  std::vector<std::unique_ptr<outgoing>> free_;
  std::deque<std::unique_ptr<incoming>> posted_;  // in the order of posting
  std::size_t stuck_ = 0;                 // maximum number of posted receives that a dead process may have begun
  std::vector<buffer<std::byte>> spare_;  // unused memory of large payloads
};

}}}  // namespace muster::v0::ps::detail
