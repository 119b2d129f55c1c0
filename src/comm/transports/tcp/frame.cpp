#include "frame.hpp"

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include <muster/core/crc32c.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr std::uint16_t magic = 0x6d7e;  // "~m"
constexpr std::uint8_t version = 2;

// A header as it is on the wire. All machines that muster builds for are little-endian; frames of two that were not
// would not even share the magic. No wire_writer: headers are written and read where nothing may be allocated.
struct wire_header {
  std::uint16_t magic = 0;
  std::uint8_t version = 0;
  frame_kind kind{};
  std::uint32_t tag = 0;
  std::uint32_t checksum = 0;  // of the header with a zero in its place
  std::uint32_t sequence = 0;
  std::uint64_t generation = 0;
  std::uint64_t bytes = 0;  // with `lead` and `flags` in its highest bytes
  std::uint64_t total = 0;
  collective_signature signature;
};
static_assert(sizeof(wire_header) == frame_bytes && std::has_unique_object_representations_v<wire_header>);
constexpr int lead_shift = 48;
constexpr int flags_shift = 56;
constexpr std::uint64_t bytes_mask = (std::uint64_t{1} << lead_shift) - 1;
static_assert(largest_message <= bytes_mask);

// What a control message's payload begins with.
struct wire_notice {
  control_message::kind what{};
  std::uint8_t unused[3] = {};
  std::int32_t status = 0;
};
static_assert(sizeof(wire_notice) == notice_head);

bool is_control(frame_kind kind) noexcept { return kind >= frame_kind::beat; }

bool is_known(frame_kind kind) noexcept {
  return (kind >= frame_kind::message && kind <= frame_kind::goodbye) ||
         (kind >= frame_kind::beat && kind <= frame_kind::suspect);
}

bool lengths_fit(const frame& f) noexcept {
  if (is_control(f.kind)) return f.bytes <= largest_control_payload && f.total == f.bytes;
  switch (f.kind) {
    case frame_kind::message:
    case frame_kind::data:
      return f.total <= largest_message && f.bytes <= f.total && (f.bytes > 0 || f.total == 0);
    case frame_kind::rts:
      return f.total <= largest_message && f.bytes == 0;
    default:
      return f.bytes == 0 && f.total == 0;
  }
}

}  // namespace

std::string_view to_string(frame_fault fault) noexcept {
  constexpr std::string_view texts[] = {"nothing",
                                        "it does not begin with the magic number",
                                        "it is of another version of muster",
                                        "its checksum is wrong",
                                        "its kind is unknown",
                                        "its flags are unknown",
                                        "its lengths are out of range"};
  return texts[static_cast<std::size_t>(fault)];
}

frame_header encode(const frame& what) noexcept {
  const auto bytes = what.bytes | std::uint64_t{what.lead} << lead_shift | std::uint64_t{what.flags} << flags_shift;
  wire_header made{magic,         version,         what.kind, what.tag,   0,
                   what.sequence, what.generation, bytes,     what.total, what.signature};
  made.checksum = crc32c(std::as_bytes(std::span(&made, 1)));
  return std::bit_cast<frame_header>(made);
}

frame_fault decode(std::span<const std::byte, frame_bytes> header, frame& into) noexcept {
  wire_header read;
  std::memcpy(&read, header.data(), frame_bytes);
  if (read.magic != magic) return frame_fault::magic;
  if (read.version != version) return frame_fault::version;
  if (std::exchange(read.checksum, 0) != crc32c(std::as_bytes(std::span(&read, 1)))) return frame_fault::checksum;
  into = {.kind = read.kind,
          .flags = static_cast<std::uint8_t>(read.bytes >> flags_shift),
          .lead = static_cast<std::uint8_t>(read.bytes >> lead_shift),
          .tag = read.tag,
          .sequence = read.sequence,
          .generation = read.generation,
          .bytes = read.bytes & bytes_mask,
          .total = read.total,
          .signature = read.signature};
  if (!is_known(into.kind)) return frame_fault::kind;
  if ((into.flags & ~frame::has_checksum) != 0) return frame_fault::flags;
  if (into.lead >= frame_bytes || (into.bytes == 0 && (into.lead != 0 || into.flags != 0)) || !lengths_fit(into))
    return frame_fault::length;
  return frame_fault::none;
}

std::size_t encode_notice(const control_message& what, std::span<std::byte, largest_control_payload> to) noexcept {
  const wire_notice head{what.what, {}, what.status};
  const std::size_t length = ::strnlen(what.text, sizeof what.text - 1);
  std::memcpy(to.data(), &head, notice_head);
  std::memcpy(to.data() + notice_head, what.text, length);
  return notice_head + length;
}

bool decode_notice(const frame& head, std::span<const std::byte> payload, control_message& into) noexcept {
  if (payload.size() < notice_head || payload.size() > notice_head + sizeof into.text - 1) return false;
  wire_notice read;
  std::memcpy(&read, payload.data(), notice_head);
  into = {.what = read.what, .status = read.status, .signature = head.signature};
  const auto text = payload.subspan(notice_head);
  into.set_text({reinterpret_cast<const char*>(text.data()), text.size()});
  // The transport's own word comes from no peer.
  return into.what >= control_message::kind::abort && into.what <= control_message::kind::position;
}

}  // namespace muster::inline v0::detail
