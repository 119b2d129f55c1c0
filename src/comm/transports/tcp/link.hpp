// All that goes between this process and one other: messages over one stream or several, in their order.
#pragma once

#include <memory>
#include <vector>

#include "../../matching/outbox.hpp"
#include "stream.hpp"

namespace muster::inline v0::detail {

/// How messages are sent; the same at both ends.
struct tcp_limits {
  std::size_t window = std::size_t{128} << 10;  ///< bytes that a stream moves at a time
  std::size_t eager = std::size_t{64} << 10;    ///< tagged messages up to this come unasked
  std::size_t credit = std::size_t{4} << 20;    ///< all messages come unasked while no more than this lies untaken
  std::size_t part = std::size_t{256} << 10;    ///< what a stream gets at least of a message that several share
  bool checksum = false;                        ///< of payloads, too
};

/// Of the credit, by a message that comes unasked: its bytes, and about what is kept of it beside them.
[[nodiscard]] constexpr std::uint64_t cost_of(std::uint64_t bytes) noexcept { return bytes + 256; }

/// The connection of this process to another of the world. All calls are made with the mesh held.
///
/// Messages are frames on the streams by turns: frame k on stream k modulo their number, and they begin at the receiver
/// in that order. A message in frames begun is ended: the rest of one that is taken back is copied and sent.
///
/// A message beyond the credit is announced and comes when it has a receive. So what lies here untaken is
/// limited, what is waited for behind it is reached by putting that little aside, and no sender fills the connection.
/// A large tagged one is always announced: a collective's has its receive soon, and a round trip more would cost it
/// much.
class tcp_link {
 public:
  /// `number`: how many there were before.
  tcp_link(int peer, matcher& messages, const tcp_limits& limits, std::uint32_t number = 0);
  tcp_link(const tcp_link&) = delete;
  tcp_link& operator=(const tcp_link&) = delete;

  [[nodiscard]] int peer() const noexcept { return peer_; }
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] bool connected() const noexcept { return !streams_.empty(); }
  /// Whether it ever was connected.
  [[nodiscard]] bool stood() const noexcept { return stood_; }
  /// What was seen when it broke, or when it could not be written to any more; empty as long as nothing was.
  [[nodiscard]] const std::string& trouble() const noexcept { return broken_.empty() ? mute_ : broken_; }
  [[nodiscard]] bool said_goodbye() const noexcept;
  void attach(std::vector<tcp_socket> streams);
  /// Never again a byte over it.
  void sever(std::string why) noexcept;

  void send(request& r);
  /// Tells the sender that the announced message `number` may come, with the next `pump_out`.
  void clear(std::uint64_t number);
  void cancel_send(request& r) noexcept;
  /// The rest of it is read there.
  void move_send(const request& r, const std::byte* to) noexcept;
  void say_goodbye();

  [[nodiscard]] bool wants_out() const noexcept;
  [[nodiscard]] bool is_urgent() const noexcept { return connected() && mute_.empty() && !urgent_.empty(); }
  /// Whether the system has bytes that the other side's has not taken.
  [[nodiscard]] bool has_unsent() const noexcept;
  /// Whether anything is waited for from there, more credit too.
  [[nodiscard]] bool wants_in() const noexcept {
    return messages_.awaits(peer_) || sends_.awaits_clear() || credit_ < limits_.credit / 2;
  }
  void pump_out() noexcept;
  void pump_in() noexcept;
  /// Of every stream that can go on when its socket is ready: what for.
  template <class Visit>
  void interests(Visit visit) const {
    const bool in = wants_in();
    for (const auto& one : streams_) {
      const bool out = mute_.empty() && (one->busy() || has_frame());
      const bool reads = in && !one->held && !one->goodbye;
      if (out || reads) visit(one->file(), reads, out);
    }
  }

 private:
  [[nodiscard]] bool has_frame() const noexcept { return !urgent_.empty() || sends_.front() != nullptr; }
  bool next_frame(tcp_stream& stream);
  void begin_frame(tcp_stream& stream, frame head, request* of, std::uint64_t offset);
  void wrote(request& r, std::uint64_t bytes) noexcept;
  bool adopt(request& r) noexcept;

  bool pump_in(tcp_stream& stream);
  bool begin_payload(tcp_stream& stream);
  bool begin_message(tcp_stream& stream, const frame& head);
  void take_payload(tcp_stream& stream, std::span<const std::byte> bytes);
  bool end_payload(tcp_stream& stream);
  void handle_announce(const frame& head);
  void repay();

  int peer_;
  matcher& messages_;
  const tcp_limits& limits_;
  const std::uint32_t number_;
  bool stood_ = false;
  std::vector<std::unique_ptr<tcp_stream>> streams_;
  std::string broken_;
  std::string mute_;  // nothing more can be written; what the other side had sent before is still read

  // Out.
  outbox sends_;                // of what has bytes to begin frames for
  std::vector<frame> urgent_;   // goes before them
  std::uint64_t next_out_ = 0;  // sequence of frames
  std::uint64_t credit_;

  // In.
  std::uint64_t next_in_ = 0;
  matcher::arrival& assembling_;  // of a message that has frames which have not begun
  std::uint64_t assembled_ = 0;   // bytes of it whose frames have
  frame assembling_head_;
  bool is_assembling_ = false;
  std::size_t announced_ = 0;  // messages that have not come
  std::uint64_t owed_ = 0;     // of the credit that this side gave
};

}  // namespace muster::inline v0::detail
