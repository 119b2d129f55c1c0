// One connection of data: bytes out of frames, frames into bytes. Knows nothing of their receivers.
#pragma once

#include <array>
#include <memory>
#include <string>

#include <muster/core/buffer.hpp>

#include "../../matching/matcher.hpp"
#include "../../net/socket.hpp"
#include "frame.hpp"

namespace muster::inline v0::detail {

/// The frame that a stream is sending: head, payload, foot.
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
};

/// Bytes behind the payload of such a frame.
[[nodiscard]] constexpr std::size_t foot_of(const frame& what) noexcept {
  const std::size_t checksum = (what.flags & frame::has_checksum) != 0 ? 4 : 0;
  const std::size_t in_last_line = static_cast<std::size_t>((what.lead + what.bytes + checksum) % frame_bytes);
  return checksum + (frame_bytes - in_last_line) % frame_bytes;
}

/// Whether the system has bytes of the socket that the other side's has not taken and still may.
[[nodiscard]] bool has_unsent_bytes(int file) noexcept;

/// What a stream met that it cannot go on after; the text says what was seen.
struct stream_broken {
  std::string what;
};

/// Both directions of one connection, buffered on the way in. Every call does what can be done at once.
class tcp_stream {
 public:
  /// `window`: the most that one call moves, and the size of the buffer. `arrival`: where what is coming goes.
  tcp_stream(tcp_socket socket, int index, std::size_t window, matcher::arrival& arrival);

  [[nodiscard]] int file() const noexcept { return socket_.file(); }
  [[nodiscard]] const tcp_socket& socket() const noexcept { return socket_; }

  // Out.
  [[nodiscard]] bool busy() const noexcept { return busy_; }
  /// To fill in; then `start`.
  [[nodiscard]] outgoing_frame& outgoing() noexcept { return out_; }
  void start() noexcept { busy_ = true; }
  /// Sends what goes of the frame, about `budget` bytes at most. Not busy any more when that was all. `more`: another
  /// frame follows at once, which the system waits for.
  void push(std::size_t budget, bool more);

  // In.
  /// The next header if all of it and what leads to its payload is here: they stay until they are consumed. Throws
  /// stream_broken when it is none.
  [[nodiscard]] bool peek(frame& head);
  /// What lies here of what comes next, at most `most` bytes.
  [[nodiscard]] std::span<const std::byte> here(std::uint64_t most) const noexcept {
    return {buffer_.data() + begin_, static_cast<std::size_t>(std::min<std::uint64_t>(most, end_ - begin_))};
  }
  void consume(std::size_t bytes) noexcept {
    begin_ += bytes;
    position_ += bytes;
  }
  /// Reads more behind what is here, at most `most` bytes; 0 when nothing has come.
  std::size_t read(std::uint64_t most);
  /// Reads past the buffer, which is empty, to where the bytes belong; `whole`: what comes behind them goes into the
  /// buffer, the foot and a little more than a header.
  std::size_t read_to(std::span<std::byte> place, bool whole);
  [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }
  [[nodiscard]] std::size_t window() const noexcept { return window_; }

  // The frame that is coming; the link's.
  matcher::arrival& to;
  std::uint64_t payload = 0;  // bytes of it in all
  std::uint64_t left = 0;     // that have not come
  std::uint64_t offset = 0;   // in the message, of the next of them
  std::size_t foot = 0;       // bytes behind it
  bool in_payload = false;    // or in its foot
  std::uint64_t owed = 0;     // of the credit, by what comes
  bool checked = false;
  std::uint32_t sum = 0;
  bool combined_last = false;  // and so more may be read at once
  bool held = false;           // a header waits for its turn
  bool goodbye = false;        // nothing comes any more
  std::uint64_t next_in = 0;   // the sequence of the next frame on it

 private:
  std::size_t receive(std::span<iovec> pieces);

  // Where in the buffer the next byte belongs: in its line as in the stream.
  [[nodiscard]] std::size_t place() const noexcept { return static_cast<std::size_t>(position_ % frame_bytes); }

  tcp_socket socket_;
  std::size_t window_;
  outgoing_frame out_;
  bool busy_ = false;
  buffer<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t position_ = 0;  // of the next byte in the stream
};

}  // namespace muster::inline v0::detail
