// Frames between the processes of a job, over any transport: many small words in one message, large ones in several.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <muster/comm/any_transport.hpp>
#include <muster/core/buffer.hpp>
#include <muster/ps/message.hpp>

namespace muster::inline v0::ps::detail {

/// How often both sides of the protocol are told the time.
inline constexpr int ticks_a_retry = 10;

/// The tags of the parameter server's messages.
inline constexpr std::uint32_t frame_tag = 15001;
inline constexpr std::uint32_t part_tag = 15002;

/// Frames to one process that its transport has not taken: so many that it always has some, and so few that they are in
/// a cache when they are filled again. Who sends much asks for it.
inline constexpr std::size_t frames_at_once = 6;

/// This process' words to all others of a group, and theirs to it; places are ranks. Used by one thread.
///
/// What goes to one place waits in a frame until it is full or `ship`ped, so that small words share the cost of a
/// message. Frames keep their order; parts of a large one may be overtaken.
class frame_link {
 public:
  /// No frame is larger, in bytes: tcp sends as much unasked.
  static constexpr std::size_t frame_limit = 65536;

  explicit frame_link(any_transport& over);
  frame_link(const frame_link&) = delete;
  frame_link& operator=(const frame_link&) = delete;

  /// What frames say of their sender from now on.
  void introduce(const frame_head& head) noexcept { head_ = head; }
  void send(const member& to, const message& what);
  /// Sends what waits for that place, or for all.
  void ship(place to);
  void ship();
  /// Bytes that wait for that place in the frame to come, and frames that are not yet taken by the transport.
  [[nodiscard]] std::size_t waiting(place to) const noexcept { return peers_[to].open ? peers_[to].open->used : 0; }
  [[nodiscard]] std::uint32_t words(place to) const noexcept { return peers_[to].open ? peers_[to].words : 0; }
  [[nodiscard]] std::size_t under_way(place to) const noexcept { return peers_[to].flying.size(); }

  /// Makes progress; calls `hear(frame)` for what has come, at most `most` frames. False when nothing has.
  template <class Hear>
  bool poll(const Hear& hear, int most = 8) {
    advance();
    bool any = false;
    for (; most > 0; --most) {
      incoming& next = *posted_.front();
      if (!over_.test(next.r)) break;
      any = true;
      hear(std::span<const std::byte>(next.data.data(), next.r.received));
      repost(posted_);
    }
    while (over_.test(parts_.front()->r)) {
      any = true;
      if (const auto* const whole = take_part(*parts_.front())) hear(std::span<const std::byte>(*whole));
      repost(parts_);
    }
    return any;
  }
  /// Gives the processor away until something may have come, at the latest until then.
  void pause(clock::time_point until) {
    if (!has_news()) over_.pause(until);
  }
  [[nodiscard]] bool must_yield() const { return over_.must_yield(); }
  /// A place that is gone for ever, found since the last call; nobody for none.
  [[nodiscard]] place find_gone();
  /// Sends nothing to it any more.
  void forget(place gone);
  /// Whether all that was sent is out of this process' hands.
  [[nodiscard]] bool is_idle();

 private:
  struct outgoing {
    buffer<std::byte> data{frame_limit};
    std::size_t used = 0;
    request r;  // after the memory: it is taken back first
  };
  struct incoming {
    buffer<std::byte> data{frame_limit};
    request r;
  };
  struct neighbour {
    std::unique_ptr<outgoing> open;
    std::uint32_t incarnation = 0;  // that `open` is for
    std::uint32_t words = 0;        // in it
    std::deque<std::unique_ptr<outgoing>> flying;
    bool gone = false;
    // The large frame that comes from there.
    std::uint64_t coming = 0;
    std::uint64_t come = 0;
    std::vector<std::byte> large;
  };
  struct part_head {
    std::uint64_t number;
    std::uint64_t total;
    std::uint64_t offset;
    std::uint64_t zero;
  };

  void advance();
  [[nodiscard]] bool has_news() const noexcept;
  void start(place to, std::unique_ptr<outgoing> frame, std::uint32_t tag);
  std::unique_ptr<outgoing> fresh();
  void send_large(const member& to, const message& what);
  void post(std::deque<std::unique_ptr<incoming>>& to, std::uint32_t tag, int count);
  void repost(std::deque<std::unique_ptr<incoming>>& in);
  [[nodiscard]] const std::vector<std::byte>* take_part(const incoming& part);

  any_transport& over_;
  frame_head head_;
  std::vector<neighbour> peers_;
  std::vector<place> flying_to_;
  std::vector<std::unique_ptr<outgoing>> free_;
  std::deque<std::unique_ptr<incoming>> posted_;  // in the order in which they wait
  std::deque<std::unique_ptr<incoming>> parts_;
  std::uint64_t next_large_ = 1;
};

}  // namespace muster::inline v0::ps::detail
