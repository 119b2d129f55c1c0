#pragma once

#include <muster/comm/transports/tcp/frame.hpp>

#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include <muster/core/crc32c.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
static_assert(sizeof(frame) == frame_bytes && std::has_unique_object_representations_v<frame>);

inline constexpr std::size_t control_message_head = offsetof(control_message, text);

// Returns the largest `total` of a frame of that kind; nothing for an unknown kind.
inline std::optional<std::uint64_t> largest_total(frame_kind kind) noexcept {
  switch (kind) {
    case frame_kind::message:
    case frame_kind::rts:
    case frame_kind::data:
      return largest_message;
    case frame_kind::cts:
    case frame_kind::credit:
    case frame_kind::goodbye:
      return 0;
    case frame_kind::beat:
    case frame_kind::control_message:
      return largest_control_payload;
  }
  return std::nullopt;
}

MUSTER_INLINE frame_header encode(frame header) noexcept {
  header.checksum = 0;
  header.checksum = crc32c(std::as_bytes(std::span(&header, 1)));
  return std::bit_cast<frame_header>(header);
}

MUSTER_INLINE const char* decode(std::span<const std::byte, frame_bytes> header, frame& into) noexcept {
  std::memcpy(&into, header.data(), frame_bytes);
  if (into.magic != frame::magic_number) return "it does not begin with the magic number";
  if (into.version != frame::present_version) return "it is of another version of muster";
  if (std::exchange(into.checksum, 0) != crc32c(std::as_bytes(std::span(&into, 1)))) return "its checksum is wrong";
  const auto largest = largest_total(into.kind);
  if (!largest) return "its kind is unknown";
  if ((into.flags & ~frame::has_checksum) != 0) return "its flags are unknown";
  const bool is_empty = into.bytes() == 0;
  if (into.total > *largest || into.lead >= frame_bytes || (is_empty && (into.lead != 0 || into.flags != 0)))
    return "its lengths are out of range";
  return nullptr;
}

MUSTER_INLINE std::span<const std::byte> encode_control_message(const control_message& message) noexcept {
  return std::as_bytes(std::span(&message, 1))
      .first(control_message_head + ::strnlen(message.text, sizeof message.text - 1));
}

MUSTER_INLINE bool decode_control_message(std::span<const std::byte> payload, control_message& into) noexcept {
  if (payload.size() < control_message_head || payload.size() >= control_message_head + sizeof into.text) return false;
  into = {};
  std::memcpy(&into, payload.data(), payload.size());
  // `peer_ended` is created by the local transport and is never sent by a peer.
  return into.type >= control_message::kind::abort && into.type <= control_message::kind::leave;
}

}}}  // namespace muster::v0::detail
