#include "message.hpp"

#include <cmath>

#include "../../core/copy.hpp"

namespace muster::inline v0::ps {
namespace {

constexpr std::uint32_t frame_magic = 0x7073726d;

struct wire_frame {
  std::uint32_t magic;
  place at;
  std::uint32_t incarnation;
  std::uint32_t to;
  std::uint64_t map_version;
  std::uint64_t clock;
};
static_assert(sizeof(wire_frame) == frame_head_bytes);

struct wire_entry {
  std::uint8_t what, flags, zero[2];
  std::uint32_t offset;
  std::uint32_t count;
  place at;
  std::uint32_t incarnation;
  float weight;
  std::uint64_t sequence;
  std::uint64_t clock;
  float scale;
  std::uint32_t zero2;
};
static_assert(sizeof(wire_entry) == log_entry_head_bytes);

}  // namespace

void detail::copy_payload(std::span<const std::byte> payload, std::byte* to) noexcept {
  muster::detail::copy_bytes(to, payload.data(), payload.size());
}

void encode(const frame_head& head, std::span<std::byte, frame_head_bytes> to) noexcept {
  const wire_frame wire{frame_magic, head.from.at, head.from.incarnation, head.to, head.map_version, head.clock};
  std::memcpy(to.data(), &wire, sizeof wire);
}

std::optional<frame_head> decode_head(std::span<const std::byte> frame) noexcept {
  wire_frame wire;
  if (frame.size() < sizeof wire) return std::nullopt;
  std::memcpy(&wire, frame.data(), sizeof wire);
  if (wire.magic != frame_magic || wire.at >= most_places) return std::nullopt;
  return frame_head{{wire.at, wire.incarnation}, wire.to, wire.map_version, wire.clock};
}

void encode_head(const log_entry& entry, std::span<std::byte, log_entry_head_bytes> to) noexcept {
  const wire_entry wire{static_cast<std::uint8_t>(entry.what),
                        entry.flags,
                        {},
                        entry.offset,
                        entry.count,
                        entry.from.at,
                        entry.from.incarnation,
                        entry.weight,
                        entry.sequence,
                        entry.clock,
                        entry.scale,
                        0};
  std::memcpy(to.data(), &wire, sizeof wire);
}

std::optional<log_entry> decode_entry(std::span<const std::byte> payload) noexcept {
  wire_entry wire;
  if (payload.size() < sizeof wire) return std::nullopt;
  std::memcpy(&wire, payload.data(), sizeof wire);
  const bool is_push = wire.what != 1;
  if (wire.what > 2 || wire.zero[0] != 0 || wire.zero[1] != 0 || wire.zero2 != 0 || !std::isfinite(wire.weight) ||
      !std::isfinite(wire.scale))
    return std::nullopt;
  if (is_push ? wire.at >= most_places : payload.size() != sizeof wire) return std::nullopt;
  return log_entry{static_cast<log_entry::kind>(wire.what),
                   wire.flags,
                   wire.offset,
                   wire.count,
                   {wire.at, wire.incarnation},
                   wire.sequence,
                   wire.clock,
                   wire.weight,
                   wire.scale,
                   payload.subspan(sizeof wire)};
}

}  // namespace muster::inline v0::ps
