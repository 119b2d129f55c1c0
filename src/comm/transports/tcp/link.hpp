// All that goes between this process and one other: messages as frames over one connection, in their order.
#pragma once

#include <array>
#include <string>
#include <vector>

#include <muster/core/buffer.hpp>

#include "../../matching/outbox.hpp"
#include "../../net/socket.hpp"
#include "frame.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// How messages are sent; the same at both ends.
struct tcp_limits {
  std::size_t window = std::size_t{128} << 10;  ///< bytes that a connection reads at a time
  std::size_t burst = std::size_t{512} << 10;   ///< bytes that it sends at a time, of one message
  std::size_t eager = std::size_t{64} << 10;    ///< tagged messages up to this come unasked
  std::size_t credit = std::size_t{4} << 20;    ///< all messages come unasked while no more than this lies untaken
  bool checksum = false;                        ///< of payloads, too
};

/// Of the credit, by a message that comes unasked: its bytes, and about what is kept of it beside them.
[[nodiscard]] constexpr std::uint64_t cost_of(std::uint64_t bytes) noexcept { return bytes + 256; }

/// Whether the system has bytes of the socket that the other side's has not taken and still may.
[[nodiscard]] bool has_unsent_bytes(int file) noexcept;

/// What a link met that it cannot go on after; the text says what was seen.
struct link_broken {
  const char* what;
};

/// The frame that a link is sending: head, payload, foot.
struct outgoing_frame {
  std::array<std::byte, 512> head{};  // the header, and what leads to the payload; of a small frame all of it
  std::size_t head_bytes = 0;
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::array<std::byte, 2 * frame_bytes> foot{};  // the checksum, and what fills the last line
  std::size_t foot_bytes = 0;
  std::uint64_t sent = 0;    // of all three
  request* of = nullptr;     // the payload's, if any
  bool checked = false;      // a checksum follows
  std::uint64_t summed = 0;  // bytes of the payload that `sum` is of
  std::uint32_t sum = 0;

  /// What it is to be; the payload lies at `payload`. A small one is copied: one piece is cheaper to send than three.
  /// Then the frame is of no request.
  void set(frame what, request* from, const std::byte* payload) noexcept;
  [[nodiscard]] std::uint64_t length() const noexcept { return head_bytes + bytes + foot_bytes; }
  /// Sends what goes of it, about `budget` bytes at most. `more`: another frame follows at once.
  void push(const tcp_socket& to, std::size_t budget, bool more);
};

/// The connection of this process to another of the world. All calls are made with the mesh held.
///
/// Messages begin at the receiver in the order of their frames. A frame that was begun is ended: the rest of a message
/// that is taken back is copied and sent.
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
  [[nodiscard]] int file() const noexcept { return socket_.file(); }
  [[nodiscard]] bool connected() const noexcept { return static_cast<bool>(socket_); }
  /// Whether it ever was connected.
  [[nodiscard]] bool stood() const noexcept { return buffer_.size() > 0; }
  /// What was seen when it broke, or when it could not be written to any more; empty as long as nothing was.
  [[nodiscard]] const std::string& trouble() const noexcept { return broken_.empty() ? mute_ : broken_; }
  void attach(tcp_socket connection);
  /// Never again a byte over it.
  void sever(std::string why) noexcept;

  void send(request& r);
  /// Tells the sender that the announced message `number` may come, with the next `pump_out`.
  void clear(std::uint64_t number) { say(frame_kind::cts, number); }
  void cancel_send(request& r) noexcept;
  /// The rest of it is read there.
  void move_send(const request& r, const std::byte* to) noexcept;
  void say_goodbye() { say(frame_kind::goodbye, 0); }

  [[nodiscard]] bool wants_out() const noexcept {
    return connected() && mute_.empty() && (is_sending() || has_frame());
  }
  [[nodiscard]] bool is_urgent() const noexcept { return connected() && mute_.empty() && !urgent_.empty(); }
  /// Whether anything is waited for from there, more credit too.
  [[nodiscard]] bool wants_in() const noexcept {
    return connected() && (messages_.awaits(peer_) || sends_.awaits_clear() || credit_ < limits_.credit / 2);
  }
  /// The same, and the next bytes may change something.
  [[nodiscard]] bool can_read() const noexcept { return wants_in() && !held_ && !goodbye_; }
  void pump_out() noexcept;
  void pump_in() noexcept;

 private:
  // Out.
  void say(frame_kind kind, std::uint64_t number);
  [[nodiscard]] bool has_frame() const noexcept { return !urgent_.empty() || sends_.front() != nullptr; }
  [[nodiscard]] bool is_sending() const noexcept { return out_.sent < out_.length(); }
  bool next_frame();
  void begin_frame(frame head, request* of);
  bool adopt(request& r) noexcept;

  // In.
  void read_frames();
  bool begin_payload();
  bool begin_message();
  void take_payload(std::span<const std::byte> bytes);
  bool end_payload();
  void handle_announce();
  void repay();
  [[nodiscard]] bool peek();
  [[nodiscard]] std::span<const std::byte> here(std::uint64_t most) const noexcept;
  void consume(std::size_t bytes) noexcept;
  std::size_t read(std::uint64_t most);
  std::size_t read_to(std::span<std::byte> place, bool whole);

  int peer_;
  matcher& messages_;
  const tcp_limits& limits_;
  const std::uint32_t number_;
  tcp_socket socket_;
  std::string broken_;
  std::string mute_;  // nothing more can be written; what the other side had sent before is still read

  // Out.
  outbox sends_;               // of what has bytes to begin frames for
  std::vector<frame> urgent_;  // goes before them
  outgoing_frame out_;
  std::uint32_t next_out_ = 0;  // sequence of frames
  std::uint64_t credit_;

  // In: what was read and not consumed yet.
  buffer<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t position_ = 0;  // of the next byte in all that comes
  // The frame that is coming.
  frame in_;
  matcher::arrival& to_;
  std::uint64_t left_ = 0;      // bytes of its payload that have not come
  std::size_t foot_ = 0;        // bytes behind it
  bool in_payload_ = false;     // or in its foot
  std::uint32_t sum_ = 0;       // of the payload so far
  bool combined_last_ = false;  // and so more may be read at once
  bool held_ = false;           // a header waits for its turn
  bool goodbye_ = false;        // nothing comes any more
  std::uint32_t next_in_ = 0;   // sequence of frames
  std::size_t announced_ = 0;   // messages that have not come
  std::uint64_t owed_ = 0;      // of the credit that this side gave
};

}}}  // namespace muster::v0::detail
