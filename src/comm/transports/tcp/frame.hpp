// What goes over a connection: frames, each a header of fixed size and perhaps a payload. Written and read here alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <muster/comm/transport.hpp>

namespace muster::inline v0::detail {

enum class frame_kind : std::uint8_t {
  // On the streams of data.
  message = 1,  ///< a message of `total` bytes, or a part of it: `bytes` of it follow
  rts = 2,      ///< a message of `total` bytes waits at its sender, under this frame's `sequence`
  cts = 3,      ///< the message that was announced under `number` has a receive: let it come
  data = 4,     ///< the message `number`, which was cleared, or a part of it: `bytes` of it follow
  credit = 5,   ///< so much of the credit is free again: `number`
  goodbye = 6,  ///< nothing comes after this
  // On the control connection.
  beat = 16,             ///< its sender lives; `signature` and `generation` say in which collective it is
  control_message = 17,  ///< a control message of the group `generation`, in the payload
  leave = 18,            ///< its sender has left the group `generation` after it had begun `number` collectives
  suspect = 19,          ///< its sender has lost the rank `number` of the world, which the payload explains
};

/// The header of a frame, read.
///
/// A frame takes whole lines of 64 bytes: behind the payload (and its checksum) comes what is missing, and before it so
/// much that it lies in its lines as in the memory that it comes from. So the system copies between places that are
/// alike in their last six bits. That is worth a lot: some processors copy twenty times slower between places whose
/// last twelve bits are nearly the same, but not quite (AMD since Zen 3, by REP MOVSB, which Linux uses).
struct frame {
  static constexpr std::uint8_t has_checksum = 1;  ///< in `flags`: four bytes with the payload's CRC-32C follow it

  frame_kind kind = frame_kind::message;
  std::uint8_t flags = 0;
  std::uint8_t lead = 0;  ///< bytes between header and payload
  std::uint32_t tag = 0;
  std::uint32_t sequence = 0;    ///< number of the frame, from its sender to its receiver
  std::uint64_t generation = 0;  ///< the group it belongs to
  std::uint64_t bytes = 0;       ///< of the payload
  std::uint64_t total = 0;       ///< of the message that the payload is of
  collective_signature signature;

  /// The `number` that some kinds are about: those have no signature, and it takes the place of the signature's count.
  [[nodiscard]] std::uint64_t number() const noexcept { return signature.count; }
  void set_number(std::uint64_t to) noexcept { signature.count = to; }

  bool operator==(const frame&) const = default;
};

inline constexpr std::size_t frame_bytes = 64;
using frame_header = std::array<std::byte, frame_bytes>;

/// Nothing that a header says is believed beyond these.
inline constexpr std::uint64_t largest_message = std::uint64_t{1} << 42;
inline constexpr std::uint64_t largest_control_payload = 1024;

/// What may be wrong with a header.
enum class frame_fault { none, magic, version, checksum, kind, flags, length };
[[nodiscard]] std::string_view to_string(frame_fault fault) noexcept;

/// Writes the header: little-endian, a CRC-32C of itself at its end.
[[nodiscard]] frame_header encode(const frame& what) noexcept;
/// Reads any bytes whatever. `into` is valid when the answer is `none`; then its kind is one of the above and its
/// lengths are within the limits.
[[nodiscard]] frame_fault decode(std::span<const std::byte, frame_bytes> header, frame& into) noexcept;

/// The payload of a control message.
inline constexpr std::size_t notice_head = 8;
[[nodiscard]] std::size_t encode_notice(const control_message& what,
                                        std::span<std::byte, largest_control_payload> to) noexcept;
/// False when it is not one. The signature is in the header; `origin` is the receiver's to fill in.
[[nodiscard]] bool decode_notice(const frame& head, std::span<const std::byte> payload, control_message& into) noexcept;

}  // namespace muster::inline v0::detail
