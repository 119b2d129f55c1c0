#include "watch.hpp"

#include <algorithm>

#include <muster/core/log.hpp>

#include "../../timing.hpp"
#include "mesh.hpp"

namespace muster::inline v0::detail {
namespace {

// What an abort needs is a few hundred bytes; a peer that takes none of it is about to be lost.
constexpr std::size_t most_unsent = std::size_t{1} << 20;
constexpr std::size_t most_unsent_of_no_matter = std::size_t{64} << 10;

// Pending connections, which have proved nothing yet: no more are kept at a time.
constexpr std::size_t most_strangers = 128;

}  // namespace

tcp_watch::tcp_watch(tcp_mesh& mesh, std::vector<tcp_peer> peers, std::vector<tcp_socket> doors,
                     const job_secret& secret)
    : mesh_(mesh),
      plan_(mesh.plan_),
      rank_(mesh.rank_),
      peers_(std::move(peers)),
      secret_(secret),
      acceptor_(
          loop_, std::move(doors), secret, static_cast<std::uint32_t>(rank_), most_strangers,
          [this](const introduction& who) { return wants(who); },
          [this](tcp_socket came, const introduction& who) {
            keep(static_cast<int>(who.from), who.line, std::move(came), stage::answering);
          }),
      pairs_(peers_.size()),
      lines_(peers_.size()) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

tcp_watch::~tcp_watch() {
  thread_.request_stop();
  loop_.wake();
}

// ---- from other threads ----

std::string tcp_watch::trouble_with(int peer) {
  const std::lock_guard lock(lines_mutex_);
  return pair(peer).trouble;
}

void tcp_watch::want(int peer, clock::time_point until) {
  const bool again = until != clock::time_point::max();
  loop_.post([=, this] { again ? dial_again(peer, until) : dial(peer); });
}

void tcp_watch::report(int peer, const std::string& why) {
  loop_.post([=, this] {
    if (pair(peer).now == stage::up) condemn(peer, why, -1);  // else it is seen already
  });
}

void tcp_watch::post(int peer, frame head, std::span<const std::byte> payload, bool matters) {
  head.total = head.bytes = payload.size();
  const auto header = encode(head);
  bool unsent = false;
  {
    const std::lock_guard lock(lines_mutex_);
    line& to = line_of(peer);
    if (to.over.unsent() > (matters ? most_unsent : most_unsent_of_no_matter)) return;
    auto& out = to.over.outgoing();
    out.append(reinterpret_cast<const char*>(header.data()), header.size());
    out.append(reinterpret_cast<const char*>(payload.data()), payload.size());
    if (to.over) flush(to);
    unsent = to.over.unsent() > 0;
  }
  if (unsent) loop_.wake();
}

void tcp_watch::say_goodbye(clock::time_point until) {
  frame last;
  last.kind = frame_kind::goodbye;
  for (std::size_t peer = 0; peer < lines_.size(); ++peer) {
    {
      const std::lock_guard lock(lines_mutex_);
      if (!lines_[peer].over) continue;
    }
    post(static_cast<int>(peer), last, {}, true);
  }
  // Taken by the other side's system: then the end of this process takes nothing of it away.
  const auto all_written = [&] {
    const std::lock_guard lock(lines_mutex_);
    return std::all_of(lines_.begin(), lines_.end(), [&](line& one) {
      if (!one.over) return true;
      flush(one);
      return one.over.unsent() == 0 && !has_unsent_bytes(one.over.socket().file());
    });
  };
  while (!all_written() && clock::now() < until) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// ---- the thread ----

void tcp_watch::run(const std::stop_token& stop) {
  last_turn_ = next_beat_ = clock::now();
  while (!stop.stop_requested()) {
    loop_.wait(next_event());
    try {
      // What has been waiting for this thread, not for its sender, is no silence.
      const auto now = clock::now();
      const auto away = now - last_turn_;
      last_turn_ = now;
      if (away > 2 * std::chrono::duration_cast<clock::duration>(plan_.beat)) {
        for (auto& one : lines_) one.heard = now;
      }
      loop_.dispatch();
      acceptor_.tick(now);
      for (auto& one : greetings_) {
        if (!one.over && !one.socket && now >= one.retry) dial_line(one);
      }
      expire(now);
      if (now >= next_beat_) beat();
      const std::lock_guard lock(lines_mutex_);
      for (auto& one : lines_) one.ready.want(EPOLLIN | (one.over.unsent() > 0 ? EPOLLOUT : 0U));
    } catch (const std::exception& trouble) {
      log(log_level::error, std::string("the thread that watches the peers met: ") + trouble.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

clock::time_point tcp_watch::next_event() const {
  auto next = std::min(std::max(next_beat_, last_turn_), acceptor_.next());
  for (const auto& one : greetings_) {
    next = std::min(next, one.socket ? one.until : one.retry);
  }
  for (const auto& one : lines_) next = std::min(next, one.condemned);
  return next;
}

// What this rank saw itself counts for more than what it was told.
void tcp_watch::condemn(int peer, const std::string& why, int witness) {
  line& of = line_of(peer);
  const bool is_new = of.condemned == clock::time_point::max();
  if (of.goodbye || (!is_new && (witness >= 0 || of.witness < 0))) return;
  if (is_new) of.condemned = clock::now() + transport_timing::late_notice;
  of.verdict = why;
  of.witness = witness;
}

// ---- heartbeats ----

void tcp_watch::beat() {
  const auto now = clock::now();
  next_beat_ += std::chrono::duration_cast<clock::duration>(plan_.beat);
  if (next_beat_ < now) next_beat_ = now + std::chrono::duration_cast<clock::duration>(plan_.beat);
  mesh_.tick();
  frame sign = mesh_.position();
  sign.kind = frame_kind::beat;
  for (std::size_t peer = 0; peer < lines_.size(); ++peer) {
    if (lines_[peer].over) post(static_cast<int>(peer), sign, {}, false);
  }
}

void tcp_watch::flush(line& one) {
  try {
    one.over.write();
  } catch (const socket_error&) {  // what there is to be seen of it the thread sees by reading
    one.over.drop_unsent();
  }
}

void tcp_watch::close(line& one) {
  one.ready = {};
  const std::lock_guard lock(lines_mutex_);
  one.over = {};
}

void tcp_watch::listen(int peer) {
  line& of = line_of(peer);
  {
    const std::lock_guard lock(lines_mutex_);
    flush(of);
  }
  try {
    while (of.over && of.over.read()) {
      of.heard = clock::now();
      std::size_t used = 0;
      for (;;) {
        const auto left = std::as_bytes(std::span(of.over.received())).subspan(used);
        if (left.size() < frame_bytes) break;
        frame head;
        const auto fault = decode(left.first<frame_bytes>(), head);
        if (fault != frame_fault::none || head.kind < frame_kind::goodbye)
          return lose(peer, "it sent what is no frame of muster: " + std::string(to_string(fault)));
        const auto bytes = static_cast<std::size_t>(head.bytes);
        if (left.size() < frame_bytes + bytes) break;
        hear(peer, head, left.subspan(frame_bytes, bytes));
        used += frame_bytes + bytes;
      }
      of.over.drop(used);
    }
  } catch (const socket_error& broken) {
    if (of.goodbye) return close(of);
    const bool stream_broke = of.condemned != clock::time_point::max() && of.witness < 0;
    lose(peer, stream_broke         ? of.verdict
               : broken.ended()     ? "its connection ended"
               : broken.closed()    ? "its connection was reset"
               : broken.timed_out() ? "its host does not answer"
                                    : broken.what());
  }
}

void tcp_watch::hear(int peer, const frame& head, std::span<const std::byte> payload) {
  switch (head.kind) {
    case frame_kind::beat: {
      notice where;
      where.what = notice::kind::position;
      where.mark = head.mark;
      return mesh_.hear_notice(peer, head, where);
    }
    case frame_kind::notice: {
      notice message;
      if (!decode_notice(head, payload, message)) return;
      return mesh_.hear_notice(peer, head, message);
    }
    case frame_kind::leave:
      return mesh_.hear_leave(peer, head.generation, head.number());
    case frame_kind::suspect:
      if (head.number() >= lines_.size() || static_cast<int>(head.number()) == rank_) return;
      return condemn(static_cast<int>(head.number()),
                     std::string(reinterpret_cast<const char*>(payload.data()), payload.size()), peer);
    case frame_kind::goodbye:
      line_of(peer).goodbye = true;
      line_of(peer).condemned = clock::time_point::max();
      return mesh_.left(peer);
    default:
      return;
  }
}

// It is gone, and all are told. What stood may be connected again; what could not be connected is gone for good.
void tcp_watch::lose(int peer, const std::string& why) {
  line& of = line_of(peer);
  close(of);
  of.condemned = clock::time_point::max();
  abandon(peer, pair(peer).now == stage::up ? stage::broken : stage::failed);
  frame word;
  word.kind = frame_kind::suspect;
  word.set_number(static_cast<std::uint64_t>(peer));
  const std::string_view text = std::string_view(why).substr(0, 300);
  for (std::size_t other = 0; other < lines_.size(); ++other) {
    if (static_cast<int>(other) != peer && lines_[other].over)
      post(static_cast<int>(other), word, std::as_bytes(std::span(text)), true);
  }
  mesh_.lose(peer, why, -1);
}

void tcp_watch::expire(clock::time_point now) {
  for (auto& one : greetings_) {
    if (one.over || !one.socket || now < one.until) continue;
    drop(one, "it did not answer in time");
  }
  std::erase_if(greetings_, [](const greeting& one) { return one.over; });
  const auto silence = std::chrono::duration_cast<clock::duration>(plan_.beat * plan_.missed);
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const int peer = static_cast<int>(i);
    line& of = lines_[i];
    if (now >= of.condemned && of.witness >= 0) {
      of.condemned = clock::time_point::max();
      mesh_.lose(peer, of.verdict, of.witness);
    } else if (now >= of.condemned) {
      lose(peer, of.verdict);
    } else if (of.over && !of.goodbye && now - of.heard > silence) {
      const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(silence).count();
      lose(peer, "no heartbeat for " + std::to_string(milliseconds) + " ms");
    }
    pairing& between = pairs_[i];
    const bool waits = between.now == stage::dialing || between.now == stage::answering;
    if (!waits || now < between.until) continue;
    const std::string span = std::to_string(static_cast<int>(plan_.patience.count())) + " s";
    lose(peer, "it could not be connected " + (between.again ? "again" : "in " + span) +
                   (between.trouble.empty() ? "" : ": " + between.trouble));
  }
}

}  // namespace muster::inline v0::detail
