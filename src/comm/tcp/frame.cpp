#include "frame.hpp"

#include <algorithm>
#include <cstring>

#include <muster/core/crc32c.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr std::uint16_t magic = 0x6d7e;  // "~m"
constexpr std::uint8_t version = 2;

// magic 2, version 1, kind 1, tag 4, checksum 4, sequence 4, generation 8, bytes 6, lead 1, flags 1, total 8, stamp:
// sequence 8, count 8, root 4, kind, type, op, how 4
constexpr std::size_t checksum_at = 8;
constexpr int lead_shift = 48;
constexpr int flags_shift = 56;
constexpr std::uint64_t bytes_mask = (std::uint64_t{1} << lead_shift) - 1;
static_assert(largest_message <= bytes_mask);

// All machines that muster builds for are little-endian; frames of two that were not would not even share the magic.
template <class T>
std::byte* put(std::byte* to, T value) noexcept {
  std::memcpy(to, &value, sizeof value);
  return to + sizeof value;
}
template <class T>
const std::byte* take(const std::byte* from, T& value) noexcept {
  std::memcpy(&value, from, sizeof value);
  return from + sizeof value;
}

bool is_control(frame_kind kind) noexcept { return kind >= frame_kind::beat; }

bool is_known(frame_kind kind) noexcept {
  return (kind >= frame_kind::message && kind <= frame_kind::goodbye) ||
         (kind >= frame_kind::beat && kind <= frame_kind::suspect);
}

bool lengths_fit(const frame& f) noexcept {
  if (is_control(f.kind)) return f.bytes <= largest_control_payload && f.total == f.bytes;
  switch (f.kind) {
    case frame_kind::message:
    case frame_kind::body:
      return f.total <= largest_message && f.bytes <= f.total && (f.bytes > 0 || f.total == 0);
    case frame_kind::announce:
      return f.total <= largest_message && f.bytes == 0;
    default:
      return f.bytes == 0 && f.total == 0;
  }
}

}  // namespace

std::string_view to_string(frame_fault fault) noexcept {
  switch (fault) {
    case frame_fault::none:
      return "nothing";
    case frame_fault::magic:
      return "it does not begin as frames do";
    case frame_fault::version:
      return "it is of another version of muster";
    case frame_fault::checksum:
      return "its checksum is wrong";
    case frame_fault::kind:
      return "its kind is unknown";
    case frame_fault::flags:
      return "its flags are unknown";
    case frame_fault::length:
      return "its lengths are beyond what there can be";
  }
  return "unknown";
}

frame_header encode(const frame& what) noexcept {
  frame_header made;
  std::byte* at = made.data();
  at = put(at, magic);
  at = put(at, version);
  at = put(at, what.kind);
  at = put(at, what.tag);
  at = put(at, std::uint32_t{0});
  at = put(at, what.sequence);
  at = put(at, what.generation);
  at = put(at, what.bytes | std::uint64_t{what.lead} << lead_shift | std::uint64_t{what.flags} << flags_shift);
  at = put(at, what.total);
  at = put(at, what.mark.sequence);
  at = put(at, what.mark.count);
  at = put(at, what.mark.root);
  at = put(at, what.mark.kind);
  at = put(at, what.mark.type);
  at = put(at, what.mark.op);
  put(at, what.mark.how);
  put(made.data() + checksum_at, crc32c(made));  // of the header with a zero in its place
  return made;
}

frame_fault decode(std::span<const std::byte, frame_bytes> header, frame& into) noexcept {
  std::uint16_t its_magic = 0;
  std::uint8_t its_version = 0;
  std::uint32_t checksum = 0;
  std::uint64_t word = 0;
  const std::byte* at = take(header.data(), its_magic);
  if (its_magic != magic) return frame_fault::magic;
  at = take(at, its_version);
  if (its_version != version) return frame_fault::version;
  at = take(at, into.kind);
  at = take(at, into.tag);
  at = take(at, checksum);
  at = take(at, into.sequence);
  at = take(at, into.generation);
  at = take(at, word);
  at = take(at, into.total);
  at = take(at, into.mark.sequence);
  at = take(at, into.mark.count);
  at = take(at, into.mark.root);
  at = take(at, into.mark.kind);
  at = take(at, into.mark.type);
  at = take(at, into.mark.op);
  take(at, into.mark.how);
  into.bytes = word & bytes_mask;
  into.lead = static_cast<std::uint8_t>(word >> lead_shift);
  into.flags = static_cast<std::uint8_t>(word >> flags_shift);
  frame_header summed;
  std::copy(header.begin(), header.end(), summed.begin());
  put(summed.data() + checksum_at, std::uint32_t{0});
  if (checksum != crc32c(summed)) return frame_fault::checksum;
  if (!is_known(into.kind)) return frame_fault::kind;
  if ((into.flags & ~frame::has_checksum) != 0) return frame_fault::flags;
  if (into.lead >= frame_bytes || (into.bytes == 0 && (into.lead != 0 || into.flags != 0)) || !lengths_fit(into))
    return frame_fault::length;
  return frame_fault::none;
}

std::size_t encode_notice(const notice& what, std::span<std::byte, largest_control_payload> to) noexcept {
  std::byte* at = to.data();
  at = put(at, what.what);
  at = std::fill_n(at, 3, std::byte{0});
  at = put(at, what.status);
  const std::string_view text(what.text, ::strnlen(what.text, sizeof what.text - 1));
  std::memcpy(at, text.data(), text.size());
  return notice_head + text.size();
}

bool decode_notice(const frame& head, std::span<const std::byte> payload, notice& into) noexcept {
  if (payload.size() < notice_head || payload.size() > notice_head + sizeof into.text - 1) return false;
  into = {};
  take(payload.data(), into.what);
  take(payload.data() + 4, into.status);
  into.mark = head.mark;
  const auto text = payload.subspan(notice_head);
  into.set_text({reinterpret_cast<const char*>(text.data()), text.size()});
  // The transport's own word comes from no peer.
  return into.what >= notice::kind::abort && into.what <= notice::kind::position;
}

}  // namespace muster::inline v0::detail
