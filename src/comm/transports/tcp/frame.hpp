// What goes over a connection: frames, each a header of fixed size and perhaps a payload. Written and read here alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 { namespace detail {

enum class frame_kind : std::uint8_t {
  // On the connection of data.
  message = 1,  ///< a message of `total` bytes, which follow
  rts = 2,      ///< a message of `total` bytes waits at its sender, under this frame's `sequence`
  cts = 3,      ///< the message that was announced under `number` has a receive: let it come
  data = 4,     ///< the message `number`, which was cleared: `total` bytes, which follow
  credit = 5,   ///< so much of the credit is free again: `number`
  goodbye = 6,  ///< nothing comes after this
  // On the control connection.
  beat = 16,            ///< its sender lives; `signature` and `generation` say in which collective it is
  control_message = 17  ///< a control message of the group `generation`, in the payload
};

inline constexpr std::size_t frame_bytes = 64;

/// The header of a frame, as it is on the wire. All machines that muster builds for are little-endian; frames of two
/// that were not would not even share the magic number.
///
/// A frame takes whole lines of 64 bytes: behind the payload (and its checksum) comes what is missing, and before it so
/// much that it lies in its lines as in the memory that it comes from. So the system copies between places that are
/// alike in their last six bits. That is worth a lot: some processors copy twenty times slower between places whose
/// last twelve bits are nearly the same, but not quite (AMD since Zen 3, by REP MOVSB, which Linux uses).
struct frame {
  static constexpr std::uint16_t magic_number = 0x6d7e;  // "~m"
  static constexpr std::uint8_t present_version = 4;
  static constexpr std::uint8_t has_checksum = 1;  ///< in `flags`: four bytes with the payload's CRC-32C follow it

  std::uint16_t magic = magic_number;
  std::uint8_t version = present_version;
  frame_kind kind = frame_kind::message;
  std::uint32_t tag = 0;
  std::uint32_t checksum = 0;    ///< of the header with a zero in this place; only on the wire
  std::uint32_t sequence = 0;    ///< number of the frame, from its sender to its receiver
  std::uint64_t generation = 0;  ///< the group it belongs to
  std::uint64_t total = 0;       ///< bytes of the message, or of the payload of a frame of control
  std::uint8_t flags = 0;
  std::uint8_t lead = 0;  ///< bytes between header and payload
  std::uint8_t unused[6] = {};
  collective_signature signature;

  /// Of the payload.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return kind == frame_kind::rts ? 0 : total; }
  /// Bytes behind the payload: its checksum, and what fills the last line.
  [[nodiscard]] std::size_t foot() const noexcept {
    const std::size_t behind = (flags & has_checksum) != 0 ? 4 : 0;
    return behind + (frame_bytes - (lead + bytes() + behind) % frame_bytes) % frame_bytes;
  }
  /// The `number` that some kinds are about: those have no signature, and it takes the place of the signature's count.
  [[nodiscard]] std::uint64_t number() const noexcept { return signature.count; }
  void set_number(std::uint64_t to) noexcept { signature.count = to; }

  bool operator==(const frame&) const = default;
};

using frame_header = std::array<std::byte, frame_bytes>;

/// Nothing that a header says is believed beyond these.
inline constexpr std::uint64_t largest_message = std::uint64_t{1} << 42;
inline constexpr std::uint64_t largest_control_payload = 1024;

/// Writes the header.
[[nodiscard]] frame_header encode(frame what) noexcept;
/// Reads any bytes whatever. Returns what is wrong with them, null when nothing is: then the kind is one of the above
/// and all lengths are within the limits.
[[nodiscard]] const char* decode(std::span<const std::byte, frame_bytes> header, frame& into) noexcept;

/// A control message as a payload: without the rest of its text. Lives as long as the message.
[[nodiscard]] std::span<const std::byte> encode_notice(const control_message& what) noexcept;
/// False when it is not one. `origin` is the receiver's to fill in.
[[nodiscard]] bool decode_notice(std::span<const std::byte> payload, control_message& into) noexcept;

}}}  // namespace muster::v0::detail
