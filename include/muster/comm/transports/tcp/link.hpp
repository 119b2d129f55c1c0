// The data connection between this process and a peer. Messages are sent as frames, in order.
//
// Flow control: a message up to the available credit is sent at once (eager). A larger message is announced by an `rts`
// frame. The receiver answers with `cts` when a receive is posted, and the sender then sends the payload in a `data`
// frame (rendezvous). The receiver returns credit by `credit` frames when the eager messages are received.
//
// States: not connected, connected (`attach`), failed for writing (`write_error_`: frames that the peer sent before are
// still read), severed (`sever`). A severed link is replaced, never connected again.
#pragma once

#include <array>
#include <string>
#include <vector>

#include <muster/core/buffer.hpp>

#include <muster/comm/matching/outbox.hpp>
#include <muster/comm/net/socket.hpp>
#include <muster/comm/transports/tcp/frame.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The parameters of message transfer; the same at both ends.
struct tcp_limits {
  std::size_t window = std::size_t{128} << 10;  ///< bytes of the read buffer; a call reads at most twice as many
  std::size_t burst = std::size_t{512} << 10;   ///< bytes that a connection sends at a time, from one message
  std::size_t eager = std::size_t{64} << 10;    ///< largest tagged message that is sent without an announcement
  /// bytes of eager messages that may wait at a receiver without a receive
  std::size_t credit = std::size_t{4} << 20;
  bool checksum = false;  ///< checksums for payloads too; headers always have one
};

/// Returns the credit that an eager message uses: its bytes, and about the memory for its bookkeeping.
[[nodiscard]] constexpr std::uint64_t credit_cost(std::uint64_t bytes) noexcept { return bytes + 256; }

/// Returns true if the system holds bytes of the socket that the peer's system has not acknowledged and may still
/// receive.
[[nodiscard]] bool has_unsent_bytes(int socket) noexcept;

/// A fault after which a link cannot continue; the text describes the fault.
struct link_broken {
  const char* reason;
};

/// The frame that a link is sending: head, payload, trailer.
struct outgoing_frame {
  // the header and the padding before the payload; for a small frame the whole frame
  std::array<std::byte, 512> head{};
  std::size_t head_bytes = 0;
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::array<std::byte, 2 * frame_bytes> trailer{};  // the checksum, and the padding of the last line
  std::size_t trailer_bytes = 0;
  std::uint64_t sent = 0;               // bytes sent of head, payload and trailer together
  request* payload_request = nullptr;   // the request that owns the payload, or null
  bool has_checksum = false;            // true if a checksum follows the payload
  std::uint64_t checksummed_bytes = 0;  // bytes of the payload that `checksum` covers
  std::uint32_t checksum = 0;

  /// Starts a new frame. `req`: the request that owns the payload at `payload`; null for a frame without payload.
  /// The payload of a small frame is copied, since one piece is cheaper to send than three; such a frame has no
  /// request.
  void set(frame header, request* req, const std::byte* payload) noexcept;
  [[nodiscard]] std::uint64_t length() const noexcept { return head_bytes + bytes + trailer_bytes; }
  /// Writes as much of the frame as the system accepts, up to about `budget` bytes. `more`: another frame follows at
  /// once.
  void write_some(const tcp_socket& socket, std::size_t budget, bool more);
};

/// The connection to another process of the world. All calls are made with the mesh's mutex held.
///
/// Messages begin at the receiver in the order of their frames. A frame that has begun is always completed: the rest of
/// a cancelled send is copied and sent.
///
/// A message beyond the credit is announced, and sent when its receive is posted. So the memory for unexpected messages
/// is limited, a message behind unexpected ones is reached by storing those few aside, and no sender fills the
/// connection. A tagged message above `tcp_limits::eager` is always announced. A message of a collective within the
/// credit is not: its receive is posted soon, and one more round trip would cost much.
class tcp_link {
 public:
  /// Makes a link without a connection. `earlier_links` counts the earlier links to the same peer.
  tcp_link(int peer, matcher& messages, const tcp_limits& limits, std::uint32_t earlier_links = 0);
  tcp_link(const tcp_link&) = delete;
  tcp_link& operator=(const tcp_link&) = delete;

  [[nodiscard]] int peer() const noexcept { return peer_; }
  [[nodiscard]] std::uint32_t number() const noexcept { return incarnation_; }
  [[nodiscard]] int file() const noexcept { return socket_.file(); }
  [[nodiscard]] bool connected() const noexcept { return static_cast<bool>(socket_); }
  /// Returns true if the link was ever connected.
  [[nodiscard]] bool was_established() const noexcept { return buffer_.size() > 0; }
  /// Returns the error with which the connection broke, or could no longer be written to; empty while there is none.
  [[nodiscard]] const std::string& failure() const noexcept {
    return connection_error_.empty() ? write_error_ : connection_error_;
  }
  /// Takes over the connection.
  void attach(tcp_socket connection);
  /// Closes the connection for good, and fails the peer's requests.
  void sever(std::string reason) noexcept;

  void send(request& req);
  /// Queues a clear-to-send for the announced message `number`. The next `write_pending` sends it.
  void send_clear(std::uint64_t number) { queue_frame(frame_kind::cts, number); }
  /// Withdraws the send; if a frame of the send has begun, a copy of the payload is sent to the end.
  void cancel_send(request& req) noexcept;
  /// Makes the send read the rest of its payload from the buffer at `data`, which has the same bytes.
  void move_send(const request& req, const std::byte* data) noexcept;
  void queue_goodbye() { queue_frame(frame_kind::goodbye, 0); }

  [[nodiscard]] bool has_output() const noexcept {
    return connected() && write_error_.empty() && (is_sending() || has_frame());
  }
  [[nodiscard]] bool has_urgent_output() const noexcept {
    return connected() && write_error_.empty() && !control_frames_.empty();
  }
  /// Returns true if the link is connected, and a message, a clear-to-send or credit from the peer is awaited.
  [[nodiscard]] bool needs_input() const noexcept {
    return connected() && (messages_.awaits(peer_) || sends_.awaits_clear() || send_credit_ < limits_.credit / 2);
  }
  /// Returns true if input is awaited and the link can process it now.
  [[nodiscard]] bool can_read() const noexcept { return needs_input() && !frame_held_ && !goodbye_received_; }
  /// Writes as many frames as possible without waiting. A failure sets `failure`.
  void write_pending() noexcept;
  /// Reads and processes the available frames, up to a limit, without waiting. A failure severs the link.
  void read_pending() noexcept;

 private:
  // Out.
  void queue_frame(frame_kind kind, std::uint64_t number);
  [[nodiscard]] bool has_frame() const noexcept { return !control_frames_.empty() || sends_.front() != nullptr; }
  [[nodiscard]] bool is_sending() const noexcept { return frame_out_.sent < frame_out_.length(); }
  bool begin_next_frame();
  void begin_frame(frame head, request* payload_request);
  bool keep_payload_copy(request& req) noexcept;

  // In.
  void read_frames();
  bool begin_payload();
  bool begin_message();
  void process_payload(std::span<const std::byte> bytes);
  bool end_payload();
  void handle_announce();
  void return_credit();
  [[nodiscard]] bool parse_header();
  [[nodiscard]] std::span<const std::byte> buffered(std::uint64_t most) const noexcept;
  void consume(std::size_t bytes) noexcept;
  std::size_t fill_buffer(std::uint64_t most);
  std::size_t read_directly(std::span<std::byte> target, bool with_trailer);

  int peer_;
  matcher& messages_;
  const tcp_limits& limits_;
  const std::uint32_t incarnation_;
  tcp_socket socket_;
  std::string connection_error_;
  std::string write_error_;  // set when writing failed; bytes that the peer had sent before are still read

  // Out.
  outbox sends_;                       // the sends that have frames to begin
  std::vector<frame> control_frames_;  // control frames, sent before the frames of `sends_`
  outgoing_frame frame_out_;
  std::uint32_t next_out_ = 0;  // sequence number of the next frame
  std::uint64_t send_credit_;   // credit that this side may still use

  // In: bytes that are read and not consumed yet.
  buffer<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t position_ = 0;  // offset of the next byte in the stream
  // The frame that is being received.
  frame frame_in_;
  matcher::inbound_target& target_;
  std::uint64_t payload_left_ = 0;  // bytes of its payload that have not arrived
  std::size_t trailer_bytes_ = 0;   // bytes after the payload
  bool in_payload_ = false;         // set while the payload or the trailer is being read
  std::uint32_t checksum_ = 0;      // checksum of the payload so far
  bool last_combined_ = false;      // set if the last payload was combined: more bytes may then be read at once
  bool frame_held_ = false;         // set while a received header waits until its message may be matched
  bool goodbye_received_ = false;   // set when the peer has sent its last frame
  std::uint32_t next_in_ = 0;       // sequence number of the next frame
  std::size_t announced_ = 0;       // number of announced messages whose payload has not arrived
  std::uint64_t credit_owed_ = 0;   // bytes of this side's credit that the peer uses
};

}}}  // namespace muster::v0::detail
