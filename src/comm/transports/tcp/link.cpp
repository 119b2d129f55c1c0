#include "link.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include <muster/core/crc32c.hpp>

namespace muster { inline namespace v0 { namespace detail {

bool has_unsent_bytes(int file) noexcept {
  tcp_info state{};
  socklen_t length = sizeof state;
  int bytes = 0;
  return ::getsockopt(file, IPPROTO_TCP, TCP_INFO, &state, &length) == 0 && state.tcpi_state != TCP_CLOSE &&
         ::ioctl(file, TIOCOUTQ, &bytes) == 0 && bytes > 0;
}

tcp_link::tcp_link(int peer, matcher& messages, const tcp_limits& limits, std::uint32_t number)
    : peer_(peer),
      messages_(messages),
      limits_(limits),
      number_(number),
      credit_(limits.credit),
      to_(messages.arrival_of(peer)) {}

void tcp_link::attach(tcp_socket connection) {
  socket_ = std::move(connection);
  buffer_ = buffer<std::byte>(limits_.window + 512);
}

void tcp_link::sever(std::string why) noexcept {
  if (broken_.empty()) broken_ = std::move(why);
  socket_ = {};
  out_ = {};
  messages_.lose(peer_);
}

// ---- sending: what for ----

void tcp_link::send(request& r) {
  auto& p = progress_of(r);
  p.announces = cost_of(r.bytes) > credit_ || (r.tag != 0 && r.bytes > limits_.eager);
  if (!p.announces) credit_ -= cost_of(r.bytes);
  sends_.push(r);
  // What is announced waits for an answer anyway: others may come to share a packet with it.
  if (!p.announces && sends_.front() == &r) pump_out();
}

void tcp_link::cancel_send(request& r) noexcept {
  const bool goes_on = r.state == message_progress::moving && trouble().empty() && adopt(r);
  if (!goes_on) {
    if (out_.of == &r) out_.of = nullptr;
    if (!progress_of(r).announces) credit_ += cost_of(r.bytes);
    sends_.drop(r);
  }
  r.owner = nullptr;
}

void tcp_link::move_send(const request& r, const std::byte* to) noexcept {
  if (out_.of == &r) out_.data = to;
}

// The receiver counts on the rest: it goes on from memory of our own. False where there is none: the connection breaks.
bool tcp_link::adopt(request& r) noexcept {
  request* const own = sends_.adopt(r);
  if (own == nullptr) {
    sever("no memory left");  // as short as needs none itself
    return false;
  }
  if (out_.of == &r) {
    out_.data = own->data;
    out_.of = own;
  }
  return true;
}

void tcp_link::say(frame_kind kind, std::uint64_t number) {
  frame word;
  word.kind = kind;
  word.set_number(number);
  urgent_.push_back(word);
}

// ---- sending: frames ----

void outgoing_frame::set(frame what, request* from, const std::byte* payload) noexcept {
  // Below this a line more costs as much as it saves.
  constexpr std::uint64_t worth_a_lead = 1024;
  bytes = what.bytes();
  if (bytes >= worth_a_lead)
    what.lead = static_cast<std::uint8_t>(reinterpret_cast<std::uintptr_t>(payload) % frame_bytes);
  const frame_header header = encode(what);
  std::copy(header.begin(), header.end(), head.begin());
  head_bytes = frame_bytes + what.lead;
  data = payload;
  foot_bytes = what.foot();
  sent = 0;
  of = from;
  checked = (what.flags & frame::has_checksum) != 0;
  summed = 0;
  sum = 0;
  if (length() > head.size()) return;
  std::byte* at = head.data() + head_bytes;
  if (bytes > 0) std::memcpy(at, payload, static_cast<std::size_t>(bytes));
  std::fill_n(at + bytes, foot_bytes, std::byte{0});
  if (checked) {
    sum = crc32c({payload, static_cast<std::size_t>(bytes)});
    std::memcpy(at + bytes, &sum, sizeof sum);
  }
  head_bytes = static_cast<std::size_t>(length());
  bytes = foot_bytes = 0;
  of = nullptr;
}

void outgoing_frame::push(const tcp_socket& to, std::size_t budget, bool more) {
  while (sent < length() && budget > 0) {
    iovec pieces[3];
    std::size_t count = 0;
    std::size_t asked = 0;
    const auto add = [&](const std::byte* from, std::uint64_t size) {
      pieces[count++] = {const_cast<std::byte*>(from), static_cast<std::size_t>(size)};  // it is only read
      asked += static_cast<std::size_t>(size);
    };
    if (sent < head_bytes) add(head.data() + sent, head_bytes - sent);
    const std::uint64_t at = sent > head_bytes ? std::min(sent - head_bytes, bytes) : 0;
    const std::uint64_t piece = std::min<std::uint64_t>(bytes - at, budget);
    if (piece > 0) add(data + at, piece);
    if (checked && at + piece > summed) {
      sum = crc32c({data + summed, static_cast<std::size_t>(at + piece - summed)}, sum);
      summed = at + piece;
      std::memcpy(foot.data(), &sum, sizeof sum);
    }
    if (at + piece == bytes && foot_bytes > 0) {
      const std::uint64_t behind = head_bytes + bytes;
      const std::uint64_t gone = sent > behind ? sent - behind : 0;
      add(foot.data() + gone, foot_bytes - gone);
    }
    const std::size_t taken = to.try_write({pieces, count}, more);
    sent += taken;
    budget -= std::min(taken, budget);
    if (taken < asked) return;  // the system has no more room
  }
}

void tcp_link::begin_frame(frame head, request* of) {
  head.sequence = next_out_++;
  if (limits_.checksum && head.bytes() > 0) head.flags |= frame::has_checksum;
  out_.set(head, of, of != nullptr ? of->data : nullptr);
  if (of != nullptr && out_.of == nullptr) sends_.finish(*of);
}

// Begins the next frame there is; false when there is none.
bool tcp_link::next_frame() {
  if (!urgent_.empty()) {
    begin_frame(urgent_.front(), nullptr);
    urgent_.erase(urgent_.begin());
    return true;
  }
  if (sends_.front() == nullptr) return false;
  request& r = *sends_.front();
  const auto& p = progress_of(r);
  frame head;
  head.tag = r.tag;
  head.generation = p.generation;
  head.signature = r.signature;
  head.total = r.bytes;
  const bool asks = p.announces && r.state == message_progress::waiting;
  r.state = message_progress::moving;
  if (asks) {
    head.kind = frame_kind::rts;
    sends_.announce(next_out_);  // the sequence that it gets
    begin_frame(head, nullptr);
    return true;
  }
  if (p.announces) {
    head.kind = frame_kind::data;
    head.set_number(p.number);
  }
  sends_.pop();
  begin_frame(head, &r);
  return true;
}

void tcp_link::pump_out() noexcept {
  if (!connected() || !mute_.empty()) return;
  try {
    do {
      if (!is_sending()) continue;
      out_.push(socket_, limits_.burst, has_frame());
      if (is_sending()) return;
      if (request* const r = std::exchange(out_.of, nullptr)) sends_.finish(*r);
    } while (next_frame());
  } catch (const socket_error& trouble) {
    mute_ = trouble.as_seen();
  } catch (const std::exception& trouble) {
    sever(trouble.what());
  }
}

}}}  // namespace muster::v0::detail
