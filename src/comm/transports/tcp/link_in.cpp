// The receiving half of a link.
#include <algorithm>
#include <cstring>

#include <muster/core/crc32c.hpp>

#include "link.hpp"

namespace muster::inline v0::detail {
namespace {

// Read ahead of what may be a large message: its place is elsewhere.
constexpr std::size_t a_little = 8192;

constexpr std::size_t most_announced = std::size_t{1} << 20;

envelope envelope_of(const frame& head) {
  const bool announces = head.kind == frame_kind::rts;
  return {.signature = head.signature,
          .total = head.total,
          .number = announces ? head.sequence : head.number(),
          .generation = head.generation,
          .tag = head.tag,
          .kind = announces ? message_kind::rts : message_kind::message};
}

void require(const char* fault) {
  if (fault != nullptr) throw stream_broken{fault};
}

}  // namespace

void tcp_link::pump_in() noexcept {
  try {
    for (bool moved = true; moved && connected();) {
      moved = false;
      const std::uint64_t before = next_in_;
      for (auto& one : streams_) moved |= pump_in(*one);
      // A frame that has begun may be what another stream held its own back for.
      moved = moved && streams_.size() > 1 && next_in_ != before;
    }
    repay();
  } catch (const stream_broken& trouble) {
    sever(trouble.what);
  } catch (const std::exception& trouble) {
    sever(trouble.what());
  }
}

// What one turn may move of the stream; true when it was anything.
bool tcp_link::pump_in(tcp_stream& stream) {
  if (stream.goodbye) return false;
  std::size_t budget = 2 * stream.window();
  bool moved = false;
  for (;;) {
    // What is here.
    for (;;) {
      if (!stream.in_payload && !begin_payload(stream)) break;
      const request* const r = stream.to.to;
      std::span<const std::byte> bytes = stream.here(stream.left);
      if (r != nullptr && r->combine != nullptr)
        bytes = bytes.first(bytes.size() / r->combine->element_size() * r->combine->element_size());
      take_payload(stream, bytes);
      stream.consume(bytes.size());
      moved = true;
      if (stream.left > 0 || !end_payload(stream)) break;
    }
    if (stream.held || stream.goodbye || budget == 0) return moved;
    // More of it.
    std::size_t asked = 0;
    std::size_t n = 0;
    if (stream.in_payload && stream.left > 0) {
      std::byte* const place = stream.empty() ? stream.to.place(stream.offset) : nullptr;
      asked = static_cast<std::size_t>(std::min<std::uint64_t>(stream.left, budget));
      if (place != nullptr) {
        n = stream.read_to({place, asked}, asked == stream.left);
        const std::size_t placed = std::min(n, asked);
        take_payload(stream, {place, placed});
      } else {
        asked = std::min(asked, stream.window());
        n = stream.read(asked + (asked == stream.left ? stream.foot : 0));
      }
    } else {
      asked = stream.combined_last ? stream.window() + 2 * frame_bytes : a_little;
      n = stream.read(asked);
    }
    if (n == 0) return moved;
    moved = true;
    budget -= std::min(budget, n);
    if (n < asked) budget = 0;  // there was no more: what came is looked at, and that is all
  }
}

// Bytes of the payload, wherever they lie now.
void tcp_link::take_payload(tcp_stream& stream, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (stream.checked) stream.sum = crc32c(bytes, stream.sum);
  if (bytes.data() != stream.to.place(stream.offset)) stream.to.put(stream.offset, bytes);
  stream.offset += bytes.size();
  stream.left -= bytes.size();
}

// All of the payload is here. False when its foot is not.
bool tcp_link::end_payload(tcp_stream& stream) {
  const auto foot = stream.here(stream.foot);
  if (foot.size() < stream.foot) return false;
  if (stream.checked) {
    std::uint32_t sum = 0;
    std::memcpy(&sum, foot.data(), sizeof sum);
    if (sum != stream.sum) throw stream_broken{"the checksum of a payload is wrong"};
  }
  stream.consume(stream.foot);
  stream.in_payload = false;
  // What is put aside counts until it is taken.
  (stream.to.aside != nullptr ? stream.to.aside->owed : messages_.taken_of(peer_)) += stream.owed;
  if (stream.payload > 0) messages_.came(stream.to, stream.payload);
  stream.to = {};
  return true;
}

// The next header, and where its payload goes. False when it is not here, or not to be taken yet.
bool tcp_link::begin_payload(tcp_stream& stream) {
  stream.held = false;
  frame head;
  if (!stream.peek(head)) return false;
  if (head.sequence != static_cast<std::uint32_t>(stream.next_in)) throw stream_broken{"its frames are out of order"};
  if (stream.next_in != next_in_) {
    stream.held = true;
    return false;
  }
  // A group that lost the rank has yet to put away what it had to do with the old connection.
  const bool begins = !is_assembling_ && (head.kind == frame_kind::message || head.kind == frame_kind::rts);
  if (number_ > 0 && begins && messages_.is_gone(peer_, head.generation)) {
    stream.held = true;
    return false;
  }
  stream.to = {};
  stream.offset = 0;
  stream.owed = 0;
  switch (head.kind) {
    case frame_kind::message:
    case frame_kind::data:
      if (!begin_message(stream, head)) {
        stream.held = true;
        return false;
      }
      break;
    case frame_kind::rts:
      handle_announce(head);
      break;
    case frame_kind::cts:
      require(sends_.clear(head.number()));
      break;
    case frame_kind::credit:
      if (head.number() > limits_.credit - std::min<std::uint64_t>(credit_, limits_.credit))
        throw stream_broken{"it gives more credit than this rank asked for"};
      credit_ += head.number();
      break;
    case frame_kind::goodbye:
      stream.goodbye = true;
      break;
    default:
      throw stream_broken{"it sent a control frame on a data stream"};
  }
  stream.consume(frame_bytes + head.lead);
  stream.next_in += streams_.size();
  ++next_in_;
  stream.left = stream.payload = head.bytes;
  stream.checked = (head.flags & frame::has_checksum) != 0;
  stream.foot = foot_of(head);
  stream.sum = 0;
  stream.in_payload = true;
  stream.combined_last = stream.to.to != nullptr && stream.to.to->combine != nullptr;
  return true;
}

// A message or a part of one. False when it is to wait where it is.
bool tcp_link::begin_message(tcp_stream& stream, const frame& head) {
  if (is_assembling_) {
    if (head.kind != assembling_head_.kind || head.tag != assembling_head_.tag ||
        head.generation != assembling_head_.generation || head.total != assembling_head_.total ||
        head.bytes > head.total - assembled_)
      throw stream_broken{"the parts of a message do not match"};
    stream.to = assembling_;
    stream.offset = assembled_;
    if (head.kind == frame_kind::message) stream.owed = head.bytes;
    assembled_ += head.bytes;
    is_assembling_ = assembled_ < head.total;
    if (!is_assembling_) assembling_ = {};  // the inbox may free it as soon as its streams have their parts
    return true;
  }
  if (head.kind == frame_kind::data) {
    require(messages_.match_body(peer_, envelope_of(head), stream.to));
    --announced_;
  } else {
    const std::uint64_t cost = cost_of(head.total);
    if (cost > limits_.credit - owed_) throw stream_broken{"it sends more than it has credit for"};
    if (!messages_.match(peer_, envelope_of(head), sends_.awaits_clear(), stream.to)) return false;
    owed_ += cost;
    stream.owed = head.bytes + (cost - head.total);
  }
  is_assembling_ = head.bytes < head.total;
  if (is_assembling_) {
    assembling_ = stream.to;
    assembling_head_ = head;
    assembled_ = head.bytes;
  }
  return true;
}

// ---- messages that ask first ----

void tcp_link::handle_announce(const frame& head) {
  if (announced_ >= most_announced) throw stream_broken{"it announces too many messages"};
  ++announced_;
  matcher::arrival nowhere;  // nothing of it comes yet
  (void)messages_.match(peer_, envelope_of(head), true, nowhere);
}

void tcp_link::clear(std::uint64_t number) {
  frame word;
  word.kind = frame_kind::cts;
  word.set_number(number);
  urgent_.push_back(word);
}

// Tells the sender now and then how much of its messages was taken.
void tcp_link::repay() {
  std::uint64_t& taken = messages_.taken_of(peer_);
  if (taken < limits_.credit / 4) return;
  frame word;
  word.kind = frame_kind::credit;
  word.set_number(taken);
  urgent_.push_back(word);
  owed_ -= taken;
  taken = 0;
}

}  // namespace muster::inline v0::detail
