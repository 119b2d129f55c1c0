// The receiving half of a link.
#include <algorithm>
#include <cstring>

#include <muster/core/crc32c.hpp>

#include "link.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// Read ahead of what may be a large message: its place is elsewhere.
constexpr std::size_t a_little = 8192;
// Read behind a payload that goes to its place.
constexpr std::size_t behind_a_payload = 4096;

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
  if (fault != nullptr) throw link_broken{fault};
}

}  // namespace

// ---- bytes ----

// What lies here of what comes next, at most `most` bytes.
std::span<const std::byte> tcp_link::here(std::uint64_t most) const noexcept {
  return {buffer_.data() + begin_, static_cast<std::size_t>(std::min<std::uint64_t>(most, end_ - begin_))};
}

void tcp_link::consume(std::size_t bytes) noexcept {
  begin_ += bytes;
  position_ += bytes;
}

// Reads more behind what is here, at most `most` bytes; 0 when nothing has come.
std::size_t tcp_link::read(std::uint64_t most) {
  // What is left here is a piece of a header, of an element or of a foot. The next byte belongs in its line of the
  // buffer as in all that comes.
  if (begin_ >= 2 * frame_bytes || begin_ == end_) {
    const std::size_t left = end_ - begin_;
    const auto place = static_cast<std::size_t>(position_ % frame_bytes);
    std::memmove(buffer_.data() + place, buffer_.data() + begin_, left);
    begin_ = place;
    end_ = begin_ + left;
  }
  const auto room = static_cast<std::size_t>(std::min<std::uint64_t>(most, buffer_.size() - end_));
  const std::size_t n = socket_.read_some({buffer_.data() + end_, room});
  end_ += n;
  return n;
}

// Reads past the buffer, which is empty, to where the bytes belong; `whole`: what comes behind them goes into the
// buffer, the foot and a little more than a header.
std::size_t tcp_link::read_to(std::span<std::byte> into, bool whole) {
  const auto behind = static_cast<std::size_t>((position_ + into.size()) % frame_bytes);
  const iovec pieces[2] = {{into.data(), into.size()},
                           {buffer_.data() + behind, std::min(behind_a_payload, buffer_.size() - behind)}};
  const std::size_t n = socket_.read_some(std::span(pieces).first(whole ? 2 : 1));
  const std::size_t taken = std::min(n, into.size());
  position_ += taken;
  begin_ = behind;
  end_ = behind + (n - taken);
  return n;
}

// ---- frames ----

void tcp_link::pump_in() noexcept {
  if (goodbye_) return;
  try {
    read_frames();
    repay();
  } catch (const link_broken& trouble) {
    sever(trouble.what);
  } catch (const socket_error& trouble) {
    const bool in_a_frame = in_payload_ || begin_ != end_;
    sever(trouble.as_seen() + (trouble.ended() && in_a_frame ? " in the middle of a message" : ""));
  } catch (const std::exception& trouble) {
    sever(trouble.what());
  }
}

// What one turn may move.
void tcp_link::read_frames() {
  std::size_t budget = 2 * limits_.window;
  for (;;) {
    // What is here.
    while (in_payload_ || begin_payload()) {
      const request* const r = to_.to;
      std::span<const std::byte> bytes = here(left_);
      if (r != nullptr && r->combine != nullptr)
        bytes = bytes.first(bytes.size() / r->combine->element_size() * r->combine->element_size());
      take_payload(bytes);
      consume(bytes.size());
      if (left_ > 0 || !end_payload()) break;
    }
    if (held_ || goodbye_ || budget == 0) return;
    // More of it.
    std::size_t asked = 0;
    std::size_t n = 0;
    if (in_payload_ && left_ > 0) {
      std::byte* const place = begin_ == end_ ? to_.place(in_.total - left_) : nullptr;
      asked = static_cast<std::size_t>(std::min<std::uint64_t>(left_, budget));
      if (place != nullptr) {
        n = read_to({place, asked}, asked == left_);
        take_payload({place, std::min(n, asked)});
      } else {
        asked = std::min(asked, limits_.window);
        n = read(asked + (asked == left_ ? foot_ : 0));
      }
    } else {
      asked = combined_last_ ? limits_.window + 2 * frame_bytes : a_little;
      n = read(asked);
    }
    if (n == 0) return;
    budget -= std::min(budget, n);
    if (n < asked) budget = 0;  // there was no more: what came is looked at, and that is all
  }
}

// Bytes of the payload, wherever they lie now.
void tcp_link::take_payload(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if ((in_.flags & frame::has_checksum) != 0) sum_ = crc32c(bytes, sum_);
  const std::uint64_t offset = in_.total - left_;
  if (bytes.data() != to_.place(offset)) to_.put(offset, bytes);
  left_ -= bytes.size();
}

// All of the payload is here. False when its foot is not.
bool tcp_link::end_payload() {
  const auto foot = here(foot_);
  if (foot.size() < foot_) return false;
  if ((in_.flags & frame::has_checksum) != 0 && std::memcmp(foot.data(), &sum_, sizeof sum_) != 0)
    throw link_broken{"the checksum of a payload is wrong"};
  consume(foot_);
  in_payload_ = false;
  // What is put aside counts until it is taken.
  if (in_.kind == frame_kind::message)
    (to_.aside != nullptr ? to_.aside->owed : messages_.taken_of(peer_)) += cost_of(in_.total);
  messages_.came(to_);
  return true;
}

// Whether all of the next header is here, and what leads to its payload.
bool tcp_link::peek() {
  const auto header = here(frame_bytes);
  if (header.size() < frame_bytes) return false;
  if (const char* const fault = decode(header.first<frame_bytes>(), in_); fault != nullptr)
    throw std::runtime_error(std::string("it sent a malformed frame: ") + fault);
  if (in_.sequence != next_in_) throw link_broken{"its frames are out of order"};
  return end_ - begin_ >= frame_bytes + in_.lead;
}

// The next header, and where its payload goes. False when it is not here, or not to be taken yet.
bool tcp_link::begin_payload() {
  held_ = false;
  if (!peek()) return false;
  // A group that lost the rank has yet to put away what it had to do with the old connection.
  const bool begins = in_.kind == frame_kind::message || in_.kind == frame_kind::rts;
  held_ = number_ > 0 && begins && messages_.is_gone(peer_, in_.generation);
  if (held_) return false;
  to_ = {};
  switch (in_.kind) {
    case frame_kind::message:
    case frame_kind::data:
      held_ = !begin_message();
      if (held_) return false;
      break;
    case frame_kind::rts:
      handle_announce();
      break;
    case frame_kind::cts:
      require(sends_.clear(in_.number()));
      break;
    case frame_kind::credit:
      if (in_.number() > limits_.credit - std::min<std::uint64_t>(credit_, limits_.credit))
        throw link_broken{"it gives more credit than this rank asked for"};
      credit_ += in_.number();
      break;
    case frame_kind::goodbye:
      goodbye_ = true;
      break;
    default:
      throw link_broken{"it sent a control frame on a data stream"};
  }
  consume(frame_bytes + in_.lead);
  ++next_in_;
  left_ = in_.bytes();
  foot_ = in_.foot();
  sum_ = 0;
  in_payload_ = true;
  combined_last_ = to_.to != nullptr && to_.to->combine != nullptr;
  return true;
}

// False when the message is to wait where it is.
bool tcp_link::begin_message() {
  if (in_.kind == frame_kind::data) {
    require(messages_.match_body(peer_, envelope_of(in_), to_));
    --announced_;
    return true;
  }
  const std::uint64_t cost = cost_of(in_.total);
  if (cost > limits_.credit - owed_) throw link_broken{"it sends more than it has credit for"};
  if (!messages_.match(peer_, envelope_of(in_), sends_.awaits_clear(), to_)) return false;
  owed_ += cost;
  return true;
}

// ---- messages that ask first ----

void tcp_link::handle_announce() {
  if (announced_ >= most_announced) throw link_broken{"it announces too many messages"};
  ++announced_;
  matcher::arrival nowhere;  // nothing of it comes yet
  (void)messages_.match(peer_, envelope_of(in_), true, nowhere);
}

// Tells the sender now and then how much of its messages was taken.
void tcp_link::repay() {
  std::uint64_t& taken = messages_.taken_of(peer_);
  if (taken < limits_.credit / 4) return;
  say(frame_kind::credit, taken);
  owed_ -= taken;
  taken = 0;
}

}}}  // namespace muster::v0::detail
