#pragma once

#include <muster/comm/transports/tcp/link.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include <muster/core/crc32c.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {

MUSTER_INLINE bool has_unsent_bytes(int socket) noexcept {
  tcp_info state{};
  socklen_t length = sizeof state;
  int bytes = 0;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &state, &length) == 0 && state.tcpi_state != TCP_CLOSE &&
         ::ioctl(socket, TIOCOUTQ, &bytes) == 0 && bytes > 0;
}

MUSTER_INLINE tcp_link::tcp_link(int peer, matcher& messages, const tcp_limits& limits, std::uint32_t earlier_links)
    : peer_(peer),
      messages_(messages),
      limits_(limits),
      incarnation_(earlier_links),
      send_credit_(limits.credit),
      target_(messages.target_of(peer)) {}

MUSTER_INLINE void tcp_link::attach(tcp_socket connection) {
  socket_ = std::move(connection);
  buffer_ = buffer<std::byte>(limits_.window + 512);
}

MUSTER_INLINE void tcp_link::sever(std::string reason) noexcept {
  if (connection_error_.empty()) connection_error_ = std::move(reason);
  socket_ = {};
  frame_out_ = {};
  messages_.on_peer_lost(peer_);
}

// ---- sending: requests ----

MUSTER_INLINE void tcp_link::send(request& req) {
  auto& p = progress_of(req);
  p.announces = credit_cost(req.bytes) > send_credit_ || (req.tag != 0 && req.bytes > limits_.eager);
  if (!p.announces) send_credit_ -= credit_cost(req.bytes);
  sends_.push(req);
  // An announced message waits for a clear-to-send anyway: later frames may share a packet with the announcement.
  if (!p.announces && sends_.front() == &req) write_pending();
}

MUSTER_INLINE void tcp_link::cancel_send(request& req) noexcept {
  const bool continues = req.state == message_progress::moving && failure().empty() && keep_payload_copy(req);
  if (!continues) {
    if (frame_out_.payload_request == &req) frame_out_.payload_request = nullptr;
    if (!progress_of(req).announces) send_credit_ += credit_cost(req.bytes);
    sends_.drop(req);
  }
  req.owner = nullptr;
}

MUSTER_INLINE void tcp_link::move_send(const request& req, const std::byte* data) noexcept {
  if (frame_out_.payload_request == &req) frame_out_.data = data;
}

// Copies the payload of a cancelled send, because the receiver needs the rest. Breaks the connection and returns false
// if no memory is left for the copy.
MUSTER_INLINE bool tcp_link::keep_payload_copy(request& req) noexcept {
  request* const copy = sends_.adopt(req);
  if (copy == nullptr) {
    sever("no memory left");  // short enough to need no allocation
    return false;
  }
  if (frame_out_.payload_request == &req) {
    frame_out_.data = copy->data;
    frame_out_.payload_request = copy;
  }
  return true;
}

MUSTER_INLINE void tcp_link::queue_frame(frame_kind kind, std::uint64_t number) {
  frame control;
  control.kind = kind;
  control.set_number(number);
  control_frames_.push_back(control);
}

// ---- sending: frames ----

MUSTER_INLINE void outgoing_frame::set(frame header, request* req, const std::byte* payload) noexcept {
  // Below this size the padding costs as much as the alignment saves.
  constexpr std::uint64_t worth_a_lead = 1024;
  bytes = header.bytes();
  if (bytes >= worth_a_lead)
    header.lead = static_cast<std::uint8_t>(reinterpret_cast<std::uintptr_t>(payload) % frame_bytes);
  const frame_header wire = encode(header);
  std::copy(wire.begin(), wire.end(), head.begin());
  head_bytes = frame_bytes + header.lead;
  data = payload;
  trailer_bytes = header.trailer_bytes();
  sent = 0;
  payload_request = req;
  has_checksum = (header.flags & frame::has_checksum) != 0;
  checksummed_bytes = 0;
  checksum = 0;
  if (length() > head.size()) return;
  std::byte* end = head.data() + head_bytes;
  if (bytes > 0) std::memcpy(end, payload, static_cast<std::size_t>(bytes));
  std::fill_n(end + bytes, trailer_bytes, std::byte{0});
  if (has_checksum) {
    checksum = crc32c({payload, static_cast<std::size_t>(bytes)});
    std::memcpy(end + bytes, &checksum, sizeof checksum);
  }
  head_bytes = static_cast<std::size_t>(length());
  bytes = trailer_bytes = 0;
  payload_request = nullptr;
}

MUSTER_INLINE void outgoing_frame::write_some(const tcp_socket& socket, std::size_t budget, bool more) {
  while (sent < length() && budget > 0) {
    iovec pieces[3];
    std::size_t count = 0;
    std::size_t requested = 0;
    const auto add = [&](const std::byte* begin, std::uint64_t size) {
      pieces[count++] = {const_cast<std::byte*>(begin), static_cast<std::size_t>(size)};  // writev only reads the bytes
      requested += static_cast<std::size_t>(size);
    };
    if (sent < head_bytes) add(head.data() + sent, head_bytes - sent);
    const std::uint64_t offset = sent > head_bytes ? std::min(sent - head_bytes, bytes) : 0;
    const std::uint64_t piece = std::min<std::uint64_t>(bytes - offset, budget);
    if (piece > 0) add(data + offset, piece);
    if (has_checksum && offset + piece > checksummed_bytes) {
      checksum =
          crc32c({data + checksummed_bytes, static_cast<std::size_t>(offset + piece - checksummed_bytes)}, checksum);
      checksummed_bytes = offset + piece;
      std::memcpy(trailer.data(), &checksum, sizeof checksum);
    }
    if (offset + piece == bytes && trailer_bytes > 0) {
      const std::uint64_t payload_end = head_bytes + bytes;
      const std::uint64_t trailer_sent = sent > payload_end ? sent - payload_end : 0;
      add(trailer.data() + trailer_sent, trailer_bytes - trailer_sent);
    }
    const std::size_t written = socket.try_write({pieces, count}, more);
    sent += written;
    budget -= std::min(written, budget);
    if (written < requested) return;  // the socket buffer is full
  }
}

MUSTER_INLINE void tcp_link::begin_frame(frame head, request* payload_request) {
  head.sequence = next_out_++;
  if (limits_.checksum && head.bytes() > 0) head.flags |= frame::has_checksum;
  frame_out_.set(head, payload_request, payload_request != nullptr ? payload_request->data : nullptr);
  if (payload_request != nullptr && frame_out_.payload_request == nullptr) sends_.finish(*payload_request);
}

// Begins the next queued frame. Returns false if there is none.
MUSTER_INLINE bool tcp_link::begin_next_frame() {
  if (!control_frames_.empty()) {
    begin_frame(control_frames_.front(), nullptr);
    control_frames_.erase(control_frames_.begin());
    return true;
  }
  if (sends_.front() == nullptr) return false;
  request& req = *sends_.front();
  const auto& p = progress_of(req);
  frame head;
  head.tag = req.tag;
  head.generation = p.group_id;
  head.signature = req.signature;
  head.total = req.bytes;
  const bool announces = p.announces && req.state == message_progress::waiting;
  req.state = message_progress::moving;
  if (announces) {
    head.kind = frame_kind::rts;
    sends_.announce(next_out_);  // the sequence number of the announcement
    begin_frame(head, nullptr);
    return true;
  }
  if (p.announces) {
    head.kind = frame_kind::data;
    head.set_number(p.number);
  }
  sends_.pop();
  begin_frame(head, &req);
  return true;
}

MUSTER_INLINE void tcp_link::write_pending() noexcept {
  if (!connected() || !write_error_.empty()) return;
  try {
    do {
      if (!is_sending()) continue;
      frame_out_.write_some(socket_, limits_.burst, has_frame());
      if (is_sending()) return;
      if (request* const req = std::exchange(frame_out_.payload_request, nullptr)) sends_.finish(*req);
    } while (begin_next_frame());
  } catch (const socket_error& failure) {
    write_error_ = failure.describe_observation();
  } catch (const std::exception& failure) {
    sever(failure.what());
  }
}

}}}  // namespace muster::v0::detail
