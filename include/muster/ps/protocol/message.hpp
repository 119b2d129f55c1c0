// The messages between servers and workers. A frame carries several messages.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include <muster/core/copy.hpp>
#include <muster/ps/protocol/shard_map.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// The kind of a message. A kind's comment lists its fields and their meaning. `epoch` is the epoch of the range's
/// entry in the sender's map.
enum class message_kind : std::uint8_t {
  // Sent by a worker.
  /// range; number: the push's sequence for that range, from 1; clock; version: the version from which the values were
  /// computed; place, settled: as in `batch_place`; offset, count, flags, payload: as the table defines
  push = 1,
  /// range; number: the request's number; clock; version: the sequence of the worker's own pushes that the values must
  /// include; place, offset, count, flags, payload: as the table defines
  pull = 2,
  /// number: the clock, all pushes before this clock are acknowledged; flags: `wants_reply`, `is_farewell`,
  /// `is_acknowledged`. Servers send this message to each other as a heartbeat
  pulse = 3,
  // Sent by a server to a worker.
  /// range; number: all sequences up to this number are committed; version: the version of the range; count: the age of
  /// the last push in updates; epoch
  ack = 4,
  resend = 5,  ///< range; number: the sequence that the server expects next; epoch
  /// range; number: the request's number; version; clock: the slowest worker's clock; count, payload: as the table
  /// defines
  values = 6,
  fenced = 7,  ///< the receiver is not in the sender's map
  /// The answer to a pulse with `wants_reply` or `is_farewell`; repeats `is_farewell` in its flags. count, offset: the
  /// thousandths of the server's time in `server_load`
  alive = 8,
  // Sent by a server to a server.
  entry = 9,       ///< range; number: index in the range's log, from 1; epoch; payload: see `log_entry`
  entry_ack = 10,  ///< range; number: entries up to this index are committed at the sender; epoch
  /// range; number: entries up to this index are applied at the sender; epoch; flags: 1 if the sender has no state and
  /// needs a copy. The answer to `offer` and `copy`, and a learner's answer to `entry`
  copied = 11,
  offer = 12,  ///< range; epoch; asks the successor for its last applied index
  /// range; number: the log index whose state is in the payload; count: number of pieces of the copy; offset: index of
  /// the piece in this message; epoch
  copy = 13,

  /// Sent by a server to a worker. range; number: the number of the push, or of the pull if flags has `refuses_pull`,
  /// that the server cannot execute; payload: the reason as text
  refused = 14,
};

/// Flags of a pulse: the sender requests an answer; the sender has finished; all servers have acknowledged the sender's
/// farewell.
inline constexpr std::uint8_t wants_reply = 1;
inline constexpr std::uint8_t is_farewell = 2;
inline constexpr std::uint8_t is_acknowledged = 4;

/// Flag of a refusal: the refused request is a pull.
inline constexpr std::uint8_t refuses_pull = 1;

/// Flag of a push: the values replace the present values, independently of the update function.
inline constexpr std::uint8_t assigns = 1;
/// Flag of a push: the values are from a checkpoint, and replace the present values and the update function's state.
inline constexpr std::uint8_t restores = 2;
/// Flag of a push: the values are encoded by the job's codec.
inline constexpr std::uint8_t encoded = 4;
/// Flag of a pull: requests the range's complete state in the checkpoint format.
inline constexpr std::uint8_t saves = 1;
/// Flag of a push or pull for a table of leases. In a push, offset is an `order_request`. In a pull, place is the clock
/// for which the worker requests a batch, offset and count are the worker's place and incarnation. Such a pull waits
/// for no clock.
inline constexpr std::uint8_t leases = 8;

/// A message in the layout of a frame, except for the payload, which belongs to the caller.
struct message {
  message_kind kind = message_kind::pulse;
  std::uint8_t flags = 0;
  std::uint16_t zero = 0;
  range_id range = 0;
  std::uint32_t offset = 0;
  std::uint32_t count = 0;
  std::uint64_t number = 0;
  std::uint64_t version = 0;
  std::uint64_t clock = 0;  ///< the epoch, in kinds that have an epoch
  float scale = 1;          ///< factor of a push: multiplies the learning rate, or the added values
  std::uint32_t bytes = 0;  ///< payload size, set in a received message
  std::uint64_t place = 0;
  std::uint64_t settled = 0;
  std::span<const std::byte> payload{};

  [[nodiscard]] std::uint64_t epoch() const noexcept { return clock; }
};

/// The first bytes of a frame, in this layout.
struct frame_head {
  member sender{};
  std::uint32_t receiver_incarnation = 0;  ///< incarnation for which the frame is meant; 0: any
  std::uint16_t magic = 0x7073;
  /// If not 0: the payload of the frame's last message is sent separately, with this number.
  std::uint16_t payload_number = 0;
  std::uint64_t map_version = 0;  ///< version of the sender's map
  std::uint64_t clock = 0;        ///< a worker's clock, as in a pulse
};

/// An entry of a range's log, which each server of the chain sends to its successor. The layout of an encoded entry,
/// except for the push's payload.
struct log_entry {
  enum class kind : std::uint32_t {
    push = 0,        ///< a push of `sender`, applied with `weight`
    fold = 1,        ///< bulk-synchronous: the sum of a clock's pushes is applied as one update
    late = 2,        ///< bulk-synchronous: a push of a clock whose sum was already applied; a separate update
    worker_left = 3  ///< `sender` has left the job; only in a table of leases
  };
  kind type = kind::push;
  float weight = 1;  ///< 0: the push is too old, or its place is already used; only its sequence and place are recorded
  member sender{};
  message push{};  ///< as received; in a fold only clock and scale are used

  [[nodiscard]] bool is_push() const noexcept { return type == kind::push || type == kind::late; }
};

// Little-endian, as on all machines that muster supports.
inline constexpr std::size_t frame_head_bytes = 32;
inline constexpr std::size_t message_head_bytes = 64;
inline constexpr std::size_t log_entry_head_bytes = 80;
static_assert(sizeof(frame_head) == frame_head_bytes && offsetof(message, payload) == message_head_bytes &&
              offsetof(log_entry, push) + message_head_bytes == log_entry_head_bytes);
inline constexpr std::size_t most_payload = std::size_t{1} << 30;
/// Alignment of a payload's beginning and end in an aligned frame.
inline constexpr std::size_t payload_alignment = 16;

/// Returns the number of bytes of a message in a frame.
[[nodiscard]] constexpr std::size_t encoded_bytes(std::size_t payload) noexcept {
  return message_head_bytes + (payload + payload_alignment - 1) / payload_alignment * payload_alignment;
}

/// Writes the head of a frame.
inline void encode(const frame_head& head, std::byte* out) noexcept { std::memcpy(out, &head, frame_head_bytes); }
/// Writes the head of a log entry. The caller writes the payload after it.
inline void encode_head(const log_entry& entry, std::byte* out) noexcept {
  std::memcpy(out, &entry, log_entry_head_bytes);
}
/// Writes the head of a message. The caller writes the payload, `payload` bytes, after it.
inline void encode_head(message head, std::size_t payload, std::byte* out) noexcept {
  head.bytes = static_cast<std::uint32_t>(payload);
  std::memcpy(out, &head, message_head_bytes);
}

/// Writes the whole message, `encoded_bytes(payload)` bytes.
inline void encode(const message& msg, std::byte* out) noexcept {
  encode_head(msg, msg.payload.size(), out);
  if (msg.payload.empty()) return;
  constexpr std::size_t small = 512;  // frequent sizes, copied without a function call
  if (msg.payload.size() <= small)
    std::memcpy(out + message_head_bytes, msg.payload.data(), msg.payload.size());
  else
    muster::detail::copy_bytes(out + message_head_bytes, msg.payload.data(), msg.payload.size());
  const std::size_t end = message_head_bytes + msg.payload.size();
  std::memset(out + end, 0, encoded_bytes(msg.payload.size()) - end);
}

// The following functions accept any bytes, and return nullopt for invalid bytes.
[[nodiscard]] inline std::optional<frame_head> decode_head(std::span<const std::byte> frame) noexcept {
  frame_head read;
  const auto magic = read.magic;
  if (frame.size() < frame_head_bytes) return std::nullopt;
  std::memcpy(&read, frame.data(), frame_head_bytes);
  if (read.magic != magic || read.sender.place >= most_nodes) return std::nullopt;
  return read;
}

[[nodiscard]] inline std::optional<log_entry> decode_entry(std::span<const std::byte> body) noexcept {
  log_entry read;
  if (body.size() < log_entry_head_bytes) return std::nullopt;
  std::memcpy(static_cast<void*>(&read), body.data(), log_entry_head_bytes);
  read.push.payload = body.subspan(log_entry_head_bytes);
  const bool folds = read.type == log_entry::kind::fold;
  if (read.type > log_entry::kind::worker_left || read.push.zero != 0 || !std::isfinite(read.weight) ||
      !std::isfinite(read.push.scale) || (folds ? !read.push.payload.empty() : read.sender.place >= most_nodes))
    return std::nullopt;
  return read;
}
/// Reads the head of a message, including the payload's length.
[[nodiscard]] inline std::optional<message> decode_message(
    std::span<const std::byte, message_head_bytes> head) noexcept {
  message read;
  std::memcpy(static_cast<void*>(&read), head.data(), message_head_bytes);
  if (read.kind < message_kind::push || read.kind > message_kind::refused || read.zero != 0 ||
      read.bytes > most_payload)
    return std::nullopt;
  return read;
}

/// A reader of the messages in a frame. Accepts any bytes.
class message_reader {
 public:
  /// `payload` is the payload of the last message if that payload was sent separately. The frame then ends with that
  /// message's head.
  explicit message_reader(std::span<const std::byte> messages, std::span<const std::byte> payload = {}) noexcept
      : rest_(messages), separate_payload_(payload) {}

  /// Reads the next message, whose payload points into the frame. Returns false at the end and for invalid bytes.
  [[nodiscard]] bool next(message& msg) noexcept {
    if (rest_.size() < message_head_bytes) return false;
    const auto head = decode_message(rest_.first<message_head_bytes>());
    if (!head) return false;
    const bool is_separate = !separate_payload_.empty() && rest_.size() == message_head_bytes;
    if (is_separate ? head->bytes != separate_payload_.size() : encoded_bytes(head->bytes) > rest_.size()) return false;
    msg = *head;
    msg.payload = is_separate ? separate_payload_ : rest_.subspan(message_head_bytes, head->bytes);
    rest_ = rest_.subspan(is_separate ? message_head_bytes : encoded_bytes(head->bytes));
    return true;
  }
  /// Returns true if the whole frame was read. Otherwise the frame is invalid.
  [[nodiscard]] bool is_complete() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  std::span<const std::byte> separate_payload_;
};

}}}  // namespace muster::v0::ps
