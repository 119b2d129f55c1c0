#include "link.hpp"

#include <algorithm>
#include <cstring>

namespace muster::inline v0::detail {

tcp_link::tcp_link(int peer, tcp_inbox& inbox, const tcp_limits& limits, std::uint32_t number)
    : peer_(peer), inbox_(inbox), limits_(limits), number_(number), credit_(limits.credit) {}

tcp_link::~tcp_link() {
  for (auto& one : orphans_) one->r.owner = nullptr;
}

bool tcp_link::said_goodbye() const noexcept {
  return !streams_.empty() && std::all_of(streams_.begin(), streams_.end(), [](const auto& s) { return s->goodbye; });
}

void tcp_link::attach(std::vector<tcp_socket> sockets) {
  stood_ = true;
  for (auto& one : sockets)
    streams_.push_back(std::make_unique<tcp_stream>(std::move(one), static_cast<int>(streams_.size()), limits_.window));
}

void tcp_link::sever(std::string why) noexcept {
  if (broken_.empty()) broken_ = std::move(why);
  const auto break_off = [this](request* r) {
    if (r == nullptr) return;
    forget(*r);
    inbox_.break_off(*r);
  };
  for (auto& one : streams_) break_off(one->to.to);
  break_off(assembling_.to);
  for (auto& entry : cleared_) break_off(entry.second);
  streams_.clear();
  assembling_ = {};
  inbox_.lose(peer_);
}

// ---- sending: what for ----

void tcp_link::send(request& r) {
  auto& p = progress_of(r);
  p.announces = cost_of(r.bytes) > credit_ || (r.tag != 0 && r.bytes > limits_.eager);
  if (!p.announces) credit_ -= cost_of(r.bytes);
  append(out_first_, out_last_, r);
  // What is announced waits for an answer anyway: others may come to share a packet with it.
  if (!p.announces && (out_first_ == &r || streams_.size() > 1)) pump_out();
}

void tcp_link::cancel_send(request& r) noexcept {
  const auto& p = progress_of(r);
  const bool goes_on = r.state == tcp_progress::moving && trouble().empty() && adopt(r);
  if (!goes_on) {
    unlink(out_first_, out_last_, r);
    for (auto& stream : streams_) {
      if (stream->outgoing().of == &r) stream->outgoing().of = nullptr;
    }
    if (!p.announces) credit_ += cost_of(r.bytes);
    std::erase_if(uncleared_, [&](const auto& entry) { return entry.second == &r; });
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
  try {
    auto made = std::make_unique<orphan>();
    made->data.assign(r.data, r.data + r.bytes);
    orphans_.push_back(std::move(made));
  } catch (const std::bad_alloc&) {
    sever("no memory left");  // as short as needs none itself
    return false;
  }
  orphan& made = *orphans_.back();
  request& own = made.r;
  own.data = made.data.data();
  own.bytes = r.bytes;
  own.tag = r.tag;
  own.peer = r.peer;
  own.mark = r.mark;
  own.state = r.state;
  own.owner = r.owner;
  own.next = r.next;
  ::new (own.room) tcp_progress(progress_of(r));
  progress_of(own).channel = nullptr;
  request* before = nullptr;
  for (request* at = out_first_; at != nullptr; before = at, at = at->next) {
    if (at != &r) continue;
    (before == nullptr ? out_first_ : before->next) = &own;
    if (out_last_ == at) out_last_ = &own;
    break;
  }
  for (auto& stream : streams_) {
    auto& out = stream->outgoing();
    if (!stream->busy() || out.of != &r) continue;
    out.data = own.data + (out.data - r.data);
    out.of = &own;
  }
  for (auto& entry : uncleared_) {
    if (entry.second == &r) entry.second = &own;
  }
  return true;
}

void tcp_link::finish_send(request& r) noexcept {
  end(r);
  tcp_channel* const group = progress_of(r).channel;
  if (group != nullptr) {
    ++group->finished;
    group->wake();
    return;
  }
  std::erase_if(orphans_, [&](const auto& one) { return &one->r == &r; });
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
}

// Gives the stream, which is idle, the next frame there is; false when there is none.
bool tcp_link::next_frame(tcp_stream& stream) {
  if (!urgent_.empty()) {
    begin_frame(stream, urgent_.front(), nullptr, 0);
    urgent_.erase(urgent_.begin());
    return true;
  }
  if (out_first_ == nullptr) return false;
  request& r = *out_first_;
  auto& p = progress_of(r);
  frame head;
  head.tag = r.tag;
  head.generation = p.generation;
  head.mark = r.mark;
  head.total = r.bytes;
  const bool asks = p.announces && r.state == tcp_progress::waiting;
  r.state = tcp_progress::moving;
  if (asks) {
    head.kind = frame_kind::announce;
    p.number = static_cast<std::uint32_t>(next_out_);  // the sequence that it gets
    uncleared_.emplace(p.number, &r);
    unlink(out_first_, out_last_, r);
    begin_frame(stream, head, nullptr, 0);
    return true;
  }
  head.bytes = r.bytes - p.moved;
  if (p.announces) {
    head.kind = frame_kind::body;
    head.set_number(p.number);
  }
  if (streams_.size() > 1 && r.bytes > limits_.part) {
    const std::uint64_t share = (r.bytes / streams_.size() + 63) / 64 * 64;
    head.bytes = std::min<std::uint64_t>(head.bytes, std::max<std::uint64_t>(share, limits_.part));
  }
  const std::uint64_t offset = p.moved;
  p.moved += head.bytes;
  if (p.moved == r.bytes) unlink(out_first_, out_last_, r);
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
        std::size_t budget = limits_.window;
        const std::uint64_t moved = one->push(budget, streams_.size() == 1 && has_frame());
        if (r == nullptr) continue;
        auto& p = progress_of(*r);
        p.written += moved;
        if (!one->busy() && p.written == r->bytes) finish_send(*r);
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
