// The wire format of a tcp connection: frames. A frame is a header of fixed size and perhaps a payload. Only frame.cpp
// encodes and decodes frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 { namespace detail {

enum class frame_kind : std::uint8_t {
  // On the data connection.
  message = 1,  ///< a message of `total` bytes; the bytes follow
  /// ready to send: a message of `total` bytes waits at the sender, announced under this frame's `sequence`
  rts = 2,
  cts = 3,      ///< clear to send: the message that was announced under `number` has a receive
  data = 4,     ///< the announced and cleared message `number`: `total` bytes, which follow
  credit = 5,   ///< returns `number` bytes of credit to the process that receives this frame
  goodbye = 6,  ///< the last frame of the sender, on the data connection and on the control connection
  // On the control connection.
  beat = 16,            ///< a heartbeat; `signature` and `generation` identify the sender's current collective
  control_message = 17  ///< a control message of the group `generation`, in the payload
};

inline constexpr std::size_t frame_bytes = 64;

/// The header of a frame, in its wire representation. All machines that muster supports are little-endian; a big-endian
/// peer would already fail at the magic number.
///
/// A frame takes whole lines of 64 bytes. Padding follows the payload and its checksum. Other padding precedes the
/// payload (`lead`), so that the payload has the same alignment within its lines as in the sender's memory. The system
/// then copies between addresses that are equal in their last six bits. This alignment is important: some processors
/// copy twenty times slower between addresses whose last twelve bits are nearly, but not quite, the same (AMD since Zen
/// 3, by REP MOVSB, which Linux uses).
struct frame {
  static constexpr std::uint16_t magic_number = 0x6d7e;  // "~m"
  static constexpr std::uint8_t present_version = 4;
  /// in `flags`: the payload's CRC-32C (four bytes) follows the payload
  static constexpr std::uint8_t has_checksum = 1;

  std::uint16_t magic = magic_number;
  std::uint8_t version = present_version;
  frame_kind kind = frame_kind::message;
  std::uint32_t tag = 0;
  std::uint32_t checksum = 0;    ///< CRC-32C of the header, computed with 0 in this field; set only on the wire
  std::uint32_t sequence = 0;    ///< number of the frame in its direction
  std::uint64_t generation = 0;  ///< the group of the message
  std::uint64_t total = 0;       ///< bytes of the message, or of the payload of a control frame
  std::uint8_t flags = 0;
  std::uint8_t lead = 0;  ///< bytes between header and payload
  std::uint8_t unused[6] = {};
  collective_signature signature;

  /// Returns the size of the payload in bytes.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return kind == frame_kind::rts ? 0 : total; }
  /// Returns the number of bytes after the payload: its checksum, and the padding of the last line.
  [[nodiscard]] std::size_t trailer_bytes() const noexcept {
    const std::size_t checksum_bytes = (flags & has_checksum) != 0 ? 4 : 0;
    return checksum_bytes + (frame_bytes - (lead + bytes() + checksum_bytes) % frame_bytes) % frame_bytes;
  }
  /// Returns the number that the kinds `cts`, `data` and `credit` carry. These kinds have no signature, and the number
  /// is stored in the signature's count.
  [[nodiscard]] std::uint64_t number() const noexcept { return signature.count; }
  void set_number(std::uint64_t number) noexcept { signature.count = number; }

  bool operator==(const frame&) const = default;
};

using frame_header = std::array<std::byte, frame_bytes>;

/// Largest lengths that a valid header may contain.
inline constexpr std::uint64_t largest_message = std::uint64_t{1} << 42;
inline constexpr std::uint64_t largest_control_payload = 1024;

/// Returns the wire representation of the header, with its checksum.
[[nodiscard]] frame_header encode(frame header) noexcept;
/// Decodes a header from untrusted bytes. Returns a description of the fault, or null if there is none: then the kind
/// is a known kind and all lengths are within the limits.
[[nodiscard]] const char* decode(std::span<const std::byte, frame_bytes> header, frame& into) noexcept;

/// Returns the control message as a payload, without the unused text bytes. The bytes are valid as long as the
/// message.
[[nodiscard]] std::span<const std::byte> encode_control_message(const control_message& message) noexcept;
/// Decodes a control message. Returns false if the payload is no control message that a peer may send. The caller sets
/// `origin`.
[[nodiscard]] bool decode_control_message(std::span<const std::byte> payload, control_message& into) noexcept;

}}}  // namespace muster::v0::detail
