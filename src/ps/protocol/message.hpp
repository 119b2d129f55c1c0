// What servers and workers say to each other: messages, many of them in a frame.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "../../core/copy.hpp"
#include "shard_map.hpp"

namespace muster { inline namespace v0 { namespace ps {

/// What a message is; behind each what its fields mean, of those it uses. `epoch` is that of the range's entry in the
/// map by which the sender acts.
enum class message_kind : std::uint8_t {
  // A worker's.
  push = 1,   ///< range, number: its sequence for that range, from 1; clock; version: that its values were computed
              ///< from; place, settled: of `batch_place`; offset, count, flags, payload: the table's
  pull = 2,   ///< range, number: of the request; clock; version: a sequence of its own that the values must include;
              ///< place, offset, count, flags, payload: the table's
  pulse = 3,  ///< number: the clock, all pushes before it have been acknowledged; flags: `wants_word`, `says_goodbye`.
              ///< Servers send it to each other as a heartbeat
  // A server's to a worker.
  ack = 4,  ///< range, number: all sequences up to it are applied for good; version: of the range then; count: how many
            ///< updates
            ///< the last one was old; epoch
  resend = 5,  ///< range, number: the sequence that is expected; epoch
  values = 6,  ///< range, number: of the request; version; clock: of the slowest worker; count, payload: the table's
  fenced = 7,  ///< to one that its map does not name
  alive = 8,   ///< the answer to a pulse that `wants_word`, or `says_goodbye`, which it then has in its flags
  // Between servers.
  entry = 9,       ///< range, number: its place in the range's log, from 1; epoch; payload: see `log_entry`
  entry_ack = 10,  ///< range, number: all up to it have come and are held behind the sender, too; epoch
  copied = 11,     ///< range, number: all up to it have come; epoch: the answer to `offer` and `copy`
  offer = 12,      ///< range, epoch: what do you have?
  copy = 13,       ///< range, number: the log's place of which the payload is the state; count: of messages that have
                   ///< a piece of it each; offset: which it is; epoch

  refused =
      14,  ///< a server's to a worker: range, number: of the push, or of the pull if flags has `refuses_pull`, that
           ///< it cannot carry out; payload: why, in words
};

/// In the flags of a pulse: its sender wants a heartbeat; it is done; it has heard that all servers know so.
inline constexpr std::uint8_t wants_word = 1;
inline constexpr std::uint8_t says_goodbye = 2;
inline constexpr std::uint8_t knows_end = 4;

/// In those of a refusal: of a pull.
inline constexpr std::uint8_t refuses_pull = 1;

/// In the flags of a push: its values replace those that are there, whatever the table's updates are.
inline constexpr std::uint8_t assigns = 1;
/// Its values are of a checkpoint: they replace those that are there and all that the update function remembers.
inline constexpr std::uint8_t restores = 2;
/// Its values are encoded by the job's codec.
inline constexpr std::uint8_t encoded = 4;
/// In those of a pull: what is asked for is all that there is of the range, as a checkpoint has it.
inline constexpr std::uint8_t saves = 1;
/// In those of a push or pull: it is about leases. A push: offset: `order_word`. A pull: place: the clock that a batch
/// is wanted for; offset, count: the worker's place and incarnation; it waits for no clock.
inline constexpr std::uint8_t leases = 8;

/// One message, as it lies in a frame, but for the payload: that belongs to the caller that gave it.
struct message {
  message_kind what = message_kind::pulse;
  std::uint8_t flags = 0;
  std::uint16_t zero = 0;
  range_id range = 0;
  std::uint32_t offset = 0;
  std::uint32_t count = 0;
  std::uint64_t number = 0;
  std::uint64_t version = 0;
  std::uint64_t clock = 0;  ///< the epoch in kinds that have one
  float scale = 1;          ///< of a push: of the learning rate, or of what is added
  std::uint32_t bytes = 0;  ///< of the payload; of one that was read
  std::uint64_t place = 0;
  std::uint64_t settled = 0;
  std::span<const std::byte> payload{};

  [[nodiscard]] std::uint64_t epoch() const noexcept { return clock; }
};

/// What a frame begins with, as it lies there.
struct frame_head {
  member from{};
  std::uint32_t to = 0;  ///< the incarnation that is meant; 0: whichever there is
  std::uint16_t magic = 0x7073;
  std::uint16_t apart = 0;        ///< not 0: the payload of its last message comes by itself, under this number
  std::uint64_t map_version = 0;  ///< that its sender knows
  std::uint64_t clock = 0;        ///< of a worker, as in a pulse
};

/// What the log of a range consists of, and what goes down its chain; as it lies there but for the push's payload.
struct log_entry {
  enum class kind : std::uint32_t {
    push = 0,  ///< of `from`, to be applied with `weight`
    fold = 1,  ///< bulk-synchronous: the sum of all pushes of a clock becomes one update
    late = 2,  ///< bulk-synchronous: a push of a clock after its sum was applied: an update by itself
    gone = 3   ///< `from` has left the job: of a table of leases
  };
  kind what = kind::push;
  float weight = 1;  ///< 0: it was too old, or another push was of its place, and is only remembered
  member from{};
  message push{};  ///< as it came; of a fold, its clock and scale

  [[nodiscard]] bool is_push() const noexcept { return what == kind::push || what == kind::late; }
};

// Little-endian, as all machines that muster runs on are.
inline constexpr std::size_t frame_head_bytes = 32;
inline constexpr std::size_t message_head_bytes = 64;
inline constexpr std::size_t log_entry_head_bytes = 80;
static_assert(sizeof(frame_head) == frame_head_bytes && offsetof(message, payload) == message_head_bytes &&
              offsetof(log_entry, push) + message_head_bytes == log_entry_head_bytes);
inline constexpr std::size_t most_payload = std::size_t{1} << 30;
/// Payloads lie on such a boundary when their frame does, and end on one.
inline constexpr std::size_t payload_alignment = 16;

/// Bytes of a message in a frame.
[[nodiscard]] constexpr std::size_t encoded_bytes(std::size_t payload) noexcept {
  return message_head_bytes + (payload + payload_alignment - 1) / payload_alignment * payload_alignment;
}

/// Writes the head of a frame.
inline void encode(const frame_head& head, std::byte* to) noexcept { std::memcpy(to, &head, frame_head_bytes); }
/// Writes the head of a log entry, behind which its payload goes.
inline void encode_head(const log_entry& entry, std::byte* to) noexcept {
  std::memcpy(to, &entry, log_entry_head_bytes);
}
/// Writes the head of a message; its payload, of `payload` bytes, goes behind it.
inline void encode_head(message what, std::size_t payload, std::byte* to) noexcept {
  what.bytes = static_cast<std::uint32_t>(payload);
  std::memcpy(to, &what, message_head_bytes);
}

/// Writes all of it, `encoded_bytes(payload)` bytes.
inline void encode(const message& what, std::byte* to) noexcept {
  encode_head(what, what.payload.size(), to);
  if (what.payload.empty()) return;
  constexpr std::size_t small = 512;  // the common ones, without a call
  if (what.payload.size() <= small)
    std::memcpy(to + message_head_bytes, what.payload.data(), what.payload.size());
  else
    muster::detail::copy_bytes(to + message_head_bytes, what.payload.data(), what.payload.size());
  const std::size_t end = message_head_bytes + what.payload.size();
  std::memset(to + end, 0, encoded_bytes(what.payload.size()) - end);
}

// These read any bytes whatever.
[[nodiscard]] inline std::optional<frame_head> decode_head(std::span<const std::byte> frame) noexcept {
  frame_head read;
  const auto magic = read.magic;
  if (frame.size() < frame_head_bytes) return std::nullopt;
  std::memcpy(&read, frame.data(), frame_head_bytes);
  if (read.magic != magic || read.from.at >= most_nodes) return std::nullopt;
  return read;
}

[[nodiscard]] inline std::optional<log_entry> decode_entry(std::span<const std::byte> body) noexcept {
  log_entry read;
  if (body.size() < log_entry_head_bytes) return std::nullopt;
  std::memcpy(static_cast<void*>(&read), body.data(), log_entry_head_bytes);
  read.push.payload = body.subspan(log_entry_head_bytes);
  const bool folds = read.what == log_entry::kind::fold;
  if (read.what > log_entry::kind::gone || read.push.zero != 0 || !std::isfinite(read.weight) ||
      !std::isfinite(read.push.scale) || (folds ? !read.push.payload.empty() : read.from.at >= most_nodes))
    return std::nullopt;
  return read;
}
/// The head of a message, with the length of its payload.
[[nodiscard]] inline std::optional<message> decode_message(
    std::span<const std::byte, message_head_bytes> head) noexcept {
  message read;
  std::memcpy(static_cast<void*>(&read), head.data(), message_head_bytes);
  if (read.what < message_kind::push || read.what > message_kind::refused || read.zero != 0 ||
      read.bytes > most_payload)
    return std::nullopt;
  return read;
}

/// Takes the messages of a frame one by one out of any bytes whatever.
class message_reader {
 public:
  /// `apart`: the payload of the last message where it does not lie in the frame, which ends with the head of that.
  explicit message_reader(std::span<const std::byte> behind_head, std::span<const std::byte> apart = {}) noexcept
      : rest_(behind_head), apart_(apart) {}

  /// The next message; its payload points into the frame; false at the end, or where there is none.
  [[nodiscard]] bool next(message& into) noexcept {
    if (rest_.size() < message_head_bytes) return false;
    const auto head = decode_message(rest_.first<message_head_bytes>());
    if (!head) return false;
    const bool lies_apart = !apart_.empty() && rest_.size() == message_head_bytes;
    if (lies_apart ? head->bytes != apart_.size() : encoded_bytes(head->bytes) > rest_.size()) return false;
    into = *head;
    into.payload = lies_apart ? apart_ : rest_.subspan(message_head_bytes, head->bytes);
    rest_ = rest_.subspan(lies_apart ? message_head_bytes : encoded_bytes(head->bytes));
    return true;
  }
  /// Whether all was read: else the frame is no frame.
  [[nodiscard]] bool whole() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  std::span<const std::byte> apart_;
};

}}}  // namespace muster::v0::ps
