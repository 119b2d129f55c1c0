// The receiving half of a link.
#pragma once

#include <muster/comm/transports/tcp/link.hpp>

#include <algorithm>
#include <cstring>

#include <muster/core/crc32c.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
// Bytes to read where a large message may follow the header: its payload is read directly into its target.
inline constexpr std::size_t read_ahead = 8192;
// Bytes to read into the buffer after a payload that is read directly into its target.
inline constexpr std::size_t read_after_payload = 4096;

inline constexpr std::size_t max_announced = std::size_t{1} << 20;

inline envelope envelope_of(const frame& head) {
  const bool announces = head.kind == frame_kind::rts;
  return {.signature = head.signature,
          .total = head.total,
          .number = announces ? head.sequence : head.number(),
          .group_id = head.generation,
          .tag = head.tag,
          .kind = announces ? message_kind::rts : message_kind::message};
}

inline void require(const char* fault) {
  if (fault != nullptr) throw link_broken{fault};
}

// ---- bytes ----

// Returns the buffered bytes that are next in the stream, at most `most`.
MUSTER_INLINE std::span<const std::byte> tcp_link::buffered(std::uint64_t most) const noexcept {
  return {buffer_.data() + begin_, static_cast<std::size_t>(std::min<std::uint64_t>(most, end_ - begin_))};
}

MUSTER_INLINE void tcp_link::consume(std::size_t bytes) noexcept {
  begin_ += bytes;
  position_ += bytes;
}

// Reads up to `most` more bytes into the buffer. Returns 0 if none have arrived.
MUSTER_INLINE std::size_t tcp_link::fill_buffer(std::uint64_t most) {
  // The remaining bytes are a part of a header, an element or a trailer. The next byte gets the same alignment in the
  // buffer as in the stream.
  if (begin_ >= 2 * frame_bytes || begin_ == end_) {
    const std::size_t rest = end_ - begin_;
    const auto alignment = static_cast<std::size_t>(position_ % frame_bytes);
    std::memmove(buffer_.data() + alignment, buffer_.data() + begin_, rest);
    begin_ = alignment;
    end_ = begin_ + rest;
  }
  const auto room = static_cast<std::size_t>(std::min<std::uint64_t>(most, buffer_.size() - end_));
  const std::size_t n = socket_.read_some({buffer_.data() + end_, room});
  end_ += n;
  return n;
}

// Reads a payload directly into `target`, past the buffer, which is empty. `with_trailer`: the following bytes, which
// are the trailer and a little more than a header, are read into the buffer.
MUSTER_INLINE std::size_t tcp_link::read_directly(std::span<std::byte> target, bool with_trailer) {
  const auto alignment = static_cast<std::size_t>((position_ + target.size()) % frame_bytes);
  const iovec pieces[2] = {{target.data(), target.size()},
                           {buffer_.data() + alignment, std::min(read_after_payload, buffer_.size() - alignment)}};
  const std::size_t n = socket_.read_some(std::span(pieces).first(with_trailer ? 2 : 1));
  const std::size_t direct = std::min(n, target.size());
  position_ += direct;
  begin_ = alignment;
  end_ = alignment + (n - direct);
  return n;
}

// ---- frames ----

MUSTER_INLINE void tcp_link::read_pending() noexcept {
  if (goodbye_received_) return;
  try {
    read_frames();
    return_credit();
  } catch (const link_broken& failure) {
    sever(failure.reason);
  } catch (const socket_error& failure) {
    const bool in_a_frame = in_payload_ || begin_ != end_;
    sever(failure.describe_observation() + (failure.ended() && in_a_frame ? " in the middle of a message" : ""));
  } catch (const std::exception& failure) {
    sever(failure.what());
  }
}

// Reads and processes frames, up to the budget for one call.
MUSTER_INLINE void tcp_link::read_frames() {
  std::size_t budget = 2 * limits_.window;
  for (;;) {
    // The buffered bytes.
    while (in_payload_ || begin_payload()) {
      const request* const req = target_.receive;
      std::span<const std::byte> bytes = buffered(payload_left_);
      if (req != nullptr && req->combine != nullptr)
        bytes = bytes.first(bytes.size() / req->combine->element_size() * req->combine->element_size());
      process_payload(bytes);
      consume(bytes.size());
      if (payload_left_ > 0 || !end_payload()) break;
    }
    if (frame_held_ || goodbye_received_ || budget == 0) return;
    // More bytes from the socket.
    std::size_t requested = 0;
    std::size_t n = 0;
    if (in_payload_ && payload_left_ > 0) {
      std::byte* const target = begin_ == end_ ? target_.place(frame_in_.total - payload_left_) : nullptr;
      requested = static_cast<std::size_t>(std::min<std::uint64_t>(payload_left_, budget));
      if (target != nullptr) {
        n = read_directly({target, requested}, requested == payload_left_);
        process_payload({target, std::min(n, requested)});
      } else {
        requested = std::min(requested, limits_.window);
        n = fill_buffer(requested + (requested == payload_left_ ? trailer_bytes_ : 0));
      }
    } else {
      requested = last_combined_ ? limits_.window + 2 * frame_bytes : read_ahead;
      n = fill_buffer(requested);
    }
    if (n == 0) return;
    budget -= std::min(budget, n);
    if (n < requested) budget = 0;  // no more bytes are available: the loop processes these bytes and ends
  }
}

// Processes bytes of the payload, in the buffer or already in their target.
MUSTER_INLINE void tcp_link::process_payload(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if ((frame_in_.flags & frame::has_checksum) != 0) checksum_ = crc32c(bytes, checksum_);
  const std::uint64_t offset = frame_in_.total - payload_left_;
  if (bytes.data() != target_.place(offset)) target_.put(offset, bytes);
  payload_left_ -= bytes.size();
}

// Checks the trailer after a complete payload and delivers the message. Returns false if the trailer has not arrived.
MUSTER_INLINE bool tcp_link::end_payload() {
  const auto trailer = buffered(trailer_bytes_);
  if (trailer.size() < trailer_bytes_) return false;
  if ((frame_in_.flags & frame::has_checksum) != 0 && std::memcmp(trailer.data(), &checksum_, sizeof checksum_) != 0)
    throw link_broken{"the checksum of a payload is wrong"};
  consume(trailer_bytes_);
  in_payload_ = false;
  // An unexpected message uses credit until it is received.
  if (frame_in_.kind == frame_kind::message)
    (target_.unexpected_message != nullptr ? target_.unexpected_message->credit_owed
                                           : messages_.consumed_credits(peer_)) += credit_cost(frame_in_.total);
  messages_.on_complete(target_);
  return true;
}

// Decodes the next header. Returns true if the header and the padding after it have arrived.
MUSTER_INLINE bool tcp_link::parse_header() {
  const auto header = buffered(frame_bytes);
  if (header.size() < frame_bytes) return false;
  if (const char* const fault = decode(header.first<frame_bytes>(), frame_in_); fault != nullptr)
    throw std::runtime_error(std::string("it sent a malformed frame: ") + fault);
  if (frame_in_.sequence != next_in_) throw link_broken{"its frames are out of order"};
  return end_ - begin_ >= frame_bytes + frame_in_.lead;
}

// Processes the next header and selects the payload's target. Returns false if the header has not arrived, or must
// wait.
MUSTER_INLINE bool tcp_link::begin_payload() {
  frame_held_ = false;
  if (!parse_header()) return false;
  // A group that lost the peer must first discard the requests and messages of the old connection.
  const bool begins = frame_in_.kind == frame_kind::message || frame_in_.kind == frame_kind::rts;
  frame_held_ = incarnation_ > 0 && begins && messages_.is_gone(peer_, frame_in_.generation);
  if (frame_held_) return false;
  target_ = {};
  switch (frame_in_.kind) {
    case frame_kind::message:
    case frame_kind::data:
      frame_held_ = !begin_message();
      if (frame_held_) return false;
      break;
    case frame_kind::rts:
      handle_announce();
      break;
    case frame_kind::cts:
      require(sends_.on_clear_to_send(frame_in_.number()));
      break;
    case frame_kind::credit:
      if (frame_in_.number() > limits_.credit - std::min<std::uint64_t>(send_credit_, limits_.credit))
        throw link_broken{"it returns more credit than this rank used"};
      send_credit_ += frame_in_.number();
      break;
    case frame_kind::goodbye:
      goodbye_received_ = true;
      break;
    default:
      throw link_broken{"it sent a control frame on a data stream"};
  }
  consume(frame_bytes + frame_in_.lead);
  ++next_in_;
  payload_left_ = frame_in_.bytes();
  trailer_bytes_ = frame_in_.trailer_bytes();
  checksum_ = 0;
  in_payload_ = true;
  last_combined_ = target_.receive != nullptr && target_.receive->combine != nullptr;
  return true;
}

// Matches the message. Returns false if the message must wait in the connection.
MUSTER_INLINE bool tcp_link::begin_message() {
  if (frame_in_.kind == frame_kind::data) {
    require(messages_.match_body(peer_, envelope_of(frame_in_), target_));
    --announced_;
    return true;
  }
  const std::uint64_t cost = credit_cost(frame_in_.total);
  if (cost > limits_.credit - credit_owed_) throw link_broken{"it sends more than it has credit for"};
  if (!messages_.match(peer_, envelope_of(frame_in_), sends_.awaits_clear(), target_)) return false;
  credit_owed_ += cost;
  return true;
}

// ---- announced messages ----

MUSTER_INLINE void tcp_link::handle_announce() {
  if (announced_ >= max_announced) throw link_broken{"it announces too many messages"};
  ++announced_;
  matcher::inbound_target no_target;  // no payload follows the announcement
  (void)messages_.match(peer_, envelope_of(frame_in_), true, no_target);
}

// Returns credit to the sender once received messages have freed a quarter of the credit.
MUSTER_INLINE void tcp_link::return_credit() {
  std::uint64_t& received = messages_.consumed_credits(peer_);
  if (received < limits_.credit / 4) return;
  queue_frame(frame_kind::credit, received);
  credit_owed_ -= received;
  received = 0;
}

}}}  // namespace muster::v0::detail
