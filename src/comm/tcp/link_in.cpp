// The receiving half of a link.
#include <algorithm>
#include <cstring>

#include <muster/core/crc32c.hpp>

#include "link.hpp"

namespace muster::inline v0::detail {
namespace {

// Read ahead of what may be a large message, whose place is elsewhere.
constexpr std::size_t a_little = 8192;

constexpr std::size_t most_announced = std::size_t{1} << 20;

constexpr const char* misfit = "the parts of a message do not fit together";

// Combines elements that lie anywhere: they are read where their type may lie.
void combine(request& r, std::uint64_t offset, std::span<const std::byte> bytes) {
  const reduction& how = *r.combine;
  std::byte* into = r.data + offset;
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % how.element_size() == 0)
    return how.combine(into, bytes.data(), bytes.size(), r.incoming_first);
  alignas(64) std::byte aligned[4096];
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), sizeof aligned / how.element_size() * how.element_size());
    std::memcpy(aligned, bytes.data(), n);
    how.combine(into, aligned, n, r.incoming_first);
    into += n;
    bytes = bytes.subspan(n);
  }
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
      std::byte* const place = stream.empty() ? tcp_inbox::place_of(stream.to, stream.offset) : nullptr;
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
  if (request* const r = stream.to.to; r != nullptr && r->combine != nullptr) {
    combine(*r, stream.offset, bytes);
  } else if (std::byte* const place = tcp_inbox::place_of(stream.to, stream.offset);
             place != nullptr && place != bytes.data()) {
    std::memcpy(place, bytes.data(), bytes.size());
  }
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
  (stream.to.aside != nullptr ? stream.to.aside->owed : inbox_.taken_of(peer_)) += stream.owed;
  if (stream.payload > 0) inbox_.came(stream.to, stream.payload);
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
  const bool begins = !is_assembling_ && (head.kind == frame_kind::message || head.kind == frame_kind::announce);
  if (number_ > 0 && begins && inbox_.is_gone(peer_, head.generation)) {
    stream.held = true;
    return false;
  }
  stream.to = {};
  stream.offset = 0;
  stream.owed = 0;
  switch (head.kind) {
    case frame_kind::message:
    case frame_kind::body:
      if (!begin_message(stream, head)) {
        stream.held = true;
        return false;
      }
      break;
    case frame_kind::announce:
      handle_announce(head);
      break;
    case frame_kind::clear:
      handle_clear(head);
      break;
    case frame_kind::credit:
      if (head.number() > limits_.credit - std::min<std::uint64_t>(credit_, limits_.credit))
        throw stream_broken{"it gives more credit than it was asked for"};
      credit_ += head.number();
      break;
    case frame_kind::goodbye:
      stream.goodbye = true;
      break;
    default:
      throw stream_broken{"it sent a frame of control among data"};
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
      throw stream_broken{misfit};
    stream.to = assembling_;
    stream.offset = assembled_;
    if (head.kind == frame_kind::message) stream.owed = head.bytes;
    assembled_ += head.bytes;
    is_assembling_ = assembled_ < head.total;
    if (!is_assembling_) assembling_ = {};  // the inbox may free it as soon as its streams have their parts
    return true;
  }
  if (head.kind == frame_kind::body) {
    take_cleared(stream, head);
  } else {
    const std::uint64_t cost = cost_of(head.total);
    if (cost > limits_.credit - owed_) throw stream_broken{"it sends more than it has credit for"};
    if (inbox_.match(peer_, head, !uncleared_.empty(), stream.to) == tcp_inbox::verdict::held) return false;
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
  if (announced_ >= most_announced) throw stream_broken{"it announces messages without end"};
  ++announced_;
  tcp_inbox::arrival to;
  if (inbox_.match(peer_, head, true, to) != tcp_inbox::verdict::held) clear(head.sequence, to.to);
}

void tcp_link::take_cleared(tcp_stream& stream, const frame& head) {
  const auto found = cleared_.find(head.number());
  if (found == cleared_.end()) throw stream_broken{"it sent a message that it was not asked for"};
  stream.to.to = found->second;
  if (stream.to.to != nullptr && stream.to.to->received != head.total) throw stream_broken{misfit};
  cleared_.erase(found);
  --announced_;
  if (head.total == 0) inbox_.came(stream.to, 0);
}

void tcp_link::clear(std::uint64_t number, request* r) {
  cleared_[number] = r;
  frame word;
  word.kind = frame_kind::clear;
  word.set_number(number);
  urgent_.push_back(word);
}

void tcp_link::handle_clear(const frame& head) {
  const auto found = uncleared_.find(head.number());
  if (found == uncleared_.end()) throw stream_broken{"it asks for a message that was not announced"};
  request& r = *found->second;
  uncleared_.erase(found);
  append(out_first_, out_last_, r);
}

// Tells the sender now and then how much of its messages was taken.
void tcp_link::repay() {
  std::uint64_t& taken = inbox_.taken_of(peer_);
  if (taken < limits_.credit / 4) return;
  frame word;
  word.kind = frame_kind::credit;
  word.set_number(taken);
  urgent_.push_back(word);
  owed_ -= taken;
  taken = 0;
}

// ---- taking back ----

void tcp_link::forget(const request& r) noexcept {
  for (auto& stream : streams_) {
    if (stream->to.to == &r) stream->to.to = nullptr;
  }
  if (assembling_.to == &r) assembling_.to = nullptr;
  for (auto& entry : cleared_) {
    if (entry.second == &r) entry.second = nullptr;
  }
}

void tcp_link::forget(std::uint64_t generation) noexcept {
  for (auto& stream : streams_) {
    if (stream->to.aside != nullptr && stream->to.aside->head.generation == generation) stream->to.aside = nullptr;
  }
  if (assembling_.aside != nullptr && assembling_.aside->head.generation == generation) assembling_.aside = nullptr;
}

}  // namespace muster::inline v0::detail
