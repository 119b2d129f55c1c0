#include "link.hpp"

#include <algorithm>
#include <cstring>

namespace muster::inline v0::detail {

tcp_link::tcp_link(int peer, matcher& messages, const tcp_limits& limits, std::uint32_t number)
    : peer_(peer),
      messages_(messages),
      limits_(limits),
      number_(number),
      credit_(limits.credit),
      assembling_(messages.arrival_of(peer, 0)) {}

bool tcp_link::said_goodbye() const noexcept {
  return !streams_.empty() && std::all_of(streams_.begin(), streams_.end(), [](const auto& s) { return s->goodbye; });
}

void tcp_link::attach(std::vector<tcp_socket> sockets) {
  stood_ = true;
  for (auto& one : sockets) {
    const std::size_t index = streams_.size();
    streams_.push_back(std::make_unique<tcp_stream>(std::move(one), static_cast<int>(index), limits_.window,
                                                    messages_.arrival_of(peer_, 1 + index)));
  }
}

void tcp_link::sever(std::string why) noexcept {
  if (broken_.empty()) broken_ = std::move(why);
  streams_.clear();
  messages_.lose(peer_);
}

// ---- sending: what for ----

void tcp_link::send(request& r) {
  auto& p = progress_of(r);
  p.announces = cost_of(r.bytes) > credit_ || (r.tag != 0 && r.bytes > limits_.eager);
  if (!p.announces) credit_ -= cost_of(r.bytes);
  sends_.push(r);
  // What is announced waits for an answer anyway: others may come to share a packet with it.
  if (!p.announces && (sends_.front() == &r || streams_.size() > 1)) pump_out();
}

void tcp_link::cancel_send(request& r) noexcept {
  const auto& p = progress_of(r);
  const bool goes_on = r.state == message_progress::moving && trouble().empty() && adopt(r);
  if (!goes_on) {
    for (auto& stream : streams_) {
      if (stream->outgoing().of == &r) stream->outgoing().of = nullptr;
    }
    if (!p.announces) credit_ += cost_of(r.bytes);
    sends_.drop(r);
  }
  r.owner = nullptr;
}

void tcp_link::move_send(const request& r, const std::byte* to) noexcept {
  for (auto& stream : streams_) {
    auto& out = stream->outgoing();
    if (stream->busy() && out.of == &r) out.data = to + (out.data - r.data);
  }
}

// The receiver counts on the rest: it goes on from memory of our own. False where there is none: the connection breaks.
bool tcp_link::adopt(request& r) noexcept {
  request* const own = sends_.adopt(r);
  if (own == nullptr) {
    sever("no memory left");  // as short as needs none itself
    return false;
  }
  for (auto& stream : streams_) {
    auto& out = stream->outgoing();
    if (!stream->busy() || out.of != &r) continue;
    out.data = own->data + (out.data - r.data);
    out.of = own;
  }
  return true;
}

void tcp_link::say_goodbye() {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    frame last;
    last.kind = frame_kind::goodbye;
    urgent_.push_back(last);
  }
}

bool tcp_link::wants_out() const noexcept {
  return connected() && mute_.empty() &&
         (has_frame() || std::any_of(streams_.begin(), streams_.end(), [](const auto& s) { return s->busy(); }));
}

bool tcp_link::has_unsent() const noexcept {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& s) { return has_unsent_bytes(s->file()); });
}

// ---- sending: frames ----

void tcp_link::begin_frame(tcp_stream& stream, frame head, request* of, std::uint64_t offset) {
  head.sequence = static_cast<std::uint32_t>(next_out_++);
  if (limits_.checksum && head.bytes > 0) head.flags |= frame::has_checksum;
  stream.outgoing().set(head, of, of != nullptr ? of->data + offset : nullptr);
  stream.start();
  if (of != nullptr && stream.outgoing().of == nullptr) wrote(*of, head.bytes);
}

void tcp_link::wrote(request& r, std::uint64_t bytes) noexcept {
  auto& p = progress_of(r);
  p.written += bytes;
  if (p.written == r.bytes) sends_.finish(r);
}

// Gives the stream, which is idle, the next frame there is; false when there is none.
bool tcp_link::next_frame(tcp_stream& stream) {
  if (!urgent_.empty()) {
    begin_frame(stream, urgent_.front(), nullptr, 0);
    urgent_.erase(urgent_.begin());
    return true;
  }
  if (sends_.front() == nullptr) return false;
  request& r = *sends_.front();
  auto& p = progress_of(r);
  frame head;
  head.tag = r.tag;
  head.generation = p.generation;
  head.signature = r.signature;
  head.total = r.bytes;
  const bool asks = p.announces && r.state == message_progress::waiting;
  r.state = message_progress::moving;
  if (asks) {
    head.kind = frame_kind::rts;
    sends_.announce(static_cast<std::uint32_t>(next_out_));  // the sequence that it gets
    begin_frame(stream, head, nullptr, 0);
    return true;
  }
  head.bytes = r.bytes - p.moved;
  if (p.announces) {
    head.kind = frame_kind::data;
    head.set_number(p.number);
  }
  if (streams_.size() > 1 && r.bytes > limits_.part) {
    const std::uint64_t share = (r.bytes / streams_.size() + 63) / 64 * 64;
    head.bytes = std::min<std::uint64_t>(head.bytes, std::max<std::uint64_t>(share, limits_.part));
  }
  const std::uint64_t offset = p.moved;
  p.moved += head.bytes;
  if (p.moved == r.bytes) sends_.pop();
  begin_frame(stream, head, &r, offset);
  return true;
}

void tcp_link::pump_out() noexcept {
  if (!connected() || !mute_.empty()) return;
  try {
    for (bool began = true; began;) {
      began = false;
      for (auto& one : streams_) {
        if (!one->busy()) continue;
        request* const r = one->outgoing().of;
        one->push(limits_.window, streams_.size() == 1 && has_frame());
        if (r != nullptr && !one->busy()) wrote(*r, one->outgoing().bytes);
      }
      auto& turn = *streams_[next_out_ % streams_.size()];
      if (!turn.busy()) began = next_frame(turn);
    }
  } catch (const stream_broken& trouble) {
    mute_ = trouble.what;
  } catch (const std::exception& trouble) {
    sever(trouble.what());
  }
}

}  // namespace muster::inline v0::detail
