#include "connection_manager.hpp"

#include <algorithm>

#include <muster/core/log.hpp>

#include "../../timing.hpp"
#include "mesh.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// What an abort needs is a few hundred bytes; a peer that takes none of it is about to be lost.
constexpr std::size_t most_unsent = std::size_t{1} << 20;
constexpr std::size_t most_unsent_of_no_matter = std::size_t{64} << 10;

// Pending connections, which have proved nothing yet: no more are kept at a time.
constexpr std::size_t most_strangers = 128;

}  // namespace

connection_manager::connection_manager(tcp_mesh& mesh, std::vector<tcp_peer> peers, std::vector<tcp_socket> listeners,
                                       const job_secret& secret)
    : mesh_(mesh),
      plan_(mesh.plan_),
      rank_(mesh.rank_),
      secret_(secret),
      acceptor_(
          loop_, std::move(listeners), secret, static_cast<std::uint32_t>(rank_), most_strangers,
          [this](const introduction& said) { return wants(said); },
          [this](tcp_socket came, const introduction& said) {
            keep(static_cast<int>(said.from), said.which, std::move(came), stage::answering);
          }),
      remotes_(peers.size()) {
  for (std::size_t i = 0; i < peers.size(); ++i) remotes_[i].at = std::move(peers[i]);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

connection_manager::~connection_manager() {
  thread_.request_stop();
  loop_.wake();
}

// ---- from other threads ----

std::string connection_manager::trouble_with(int peer) {
  const std::lock_guard lock(controls_mutex_);
  return of(peer).trouble;
}

void connection_manager::want(int peer, clock::time_point until) {
  const bool again = until != clock::time_point::max();
  loop_.post([=, this] { again ? dial_again(peer, until) : dial(peer); });
}

void connection_manager::report(int peer, const std::string& why) {
  loop_.post([=, this] {
    remote& its = of(peer);
    if (its.now != stage::up || its.goodbye) return;  // else it is seen already
    its.suspect_deadline = std::min(its.suspect_deadline, clock::now() + transport_timing::late_control_message);
    its.failure_reason = why;
  });
}

void connection_manager::post(int peer, frame head, std::span<const std::byte> payload, bool matters) {
  head.total = payload.size();
  const auto header = encode(head);
  bool unsent = false;
  {
    const std::lock_guard lock(controls_mutex_);
    remote& to = of(peer);
    if (to.over.unsent() > (matters ? most_unsent : most_unsent_of_no_matter)) return;
    auto& out = to.over.outgoing();
    out.append(reinterpret_cast<const char*>(header.data()), header.size());
    out.append(reinterpret_cast<const char*>(payload.data()), payload.size());
    if (to.over) flush(to);
    unsent = to.over.unsent() > 0;
  }
  if (unsent) loop_.wake();
}

void connection_manager::say_goodbye(clock::time_point until) {
  frame last;
  last.kind = frame_kind::goodbye;
  for (std::size_t peer = 0; peer < remotes_.size(); ++peer) {
    {
      const std::lock_guard lock(controls_mutex_);
      if (!remotes_[peer].over) continue;
    }
    post(static_cast<int>(peer), last, {}, true);
  }
  // Taken by the other side's system: then the end of this process takes nothing of it away.
  const auto all_written = [&] {
    const std::lock_guard lock(controls_mutex_);
    return std::all_of(remotes_.begin(), remotes_.end(), [&](remote& one) {
      if (!one.over) return true;
      flush(one);
      return one.over.unsent() == 0 && !has_unsent_bytes(one.over.socket().file());
    });
  };
  while (!all_written() && clock::now() < until) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// ---- the thread ----

void connection_manager::run(const std::stop_token& stop) {
  last_turn_ = next_beat_ = clock::now();
  while (!stop.stop_requested()) {
    loop_.wait(next_event());
    try {
      // What has been waiting for this thread, not for its sender, is no silence.
      const auto now = clock::now();
      const auto away = now - last_turn_;
      last_turn_ = now;
      if (away > 2 * std::chrono::duration_cast<clock::duration>(plan_.beat)) {
        for (auto& one : remotes_) one.heard = now;
      }
      loop_.dispatch();
      acceptor_.tick(now);
      for (auto& one : pending_connections_) {
        if (!one.over && !one.socket && now >= one.retry) dial_one(one);
      }
      expire(now);
      if (now >= next_beat_) beat();
      const std::lock_guard lock(controls_mutex_);
      for (auto& one : remotes_) one.ready.want(EPOLLIN | (one.over.unsent() > 0 ? EPOLLOUT : 0U));
    } catch (const std::exception& trouble) {
      log(log_level::error, std::string("an error in the thread of the heartbeats: ") + trouble.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

clock::time_point connection_manager::next_event() const {
  auto next = std::min(std::max(next_beat_, last_turn_), acceptor_.next());
  for (const auto& one : pending_connections_) {
    next = std::min(next, one.socket ? one.until : one.retry);
  }
  for (const auto& one : remotes_) next = std::min(next, one.suspect_deadline);
  return next;
}

// ---- heartbeats ----

void connection_manager::beat() {
  const auto now = clock::now();
  usual_lateness_ += (now - next_beat_ - usual_lateness_) / 16;
  next_beat_ += std::chrono::duration_cast<clock::duration>(plan_.beat);
  if (next_beat_ < now) next_beat_ = now + std::chrono::duration_cast<clock::duration>(plan_.beat);
  mesh_.tick();
  frame sign = mesh_.position();
  sign.kind = frame_kind::beat;
  for (std::size_t peer = 0; peer < remotes_.size(); ++peer) {
    if (remotes_[peer].over) post(static_cast<int>(peer), sign, {}, false);
  }
}

void connection_manager::flush(remote& one) {
  try {
    one.over.write();
  } catch (const socket_error&) {  // what there is to be seen of it the thread sees by reading
    one.over.drop_unsent();
  }
}

void connection_manager::close(remote& one) {
  one.ready = {};
  const std::lock_guard lock(controls_mutex_);
  one.over = {};
}

void connection_manager::listen(int peer) {
  remote& its = of(peer);
  {
    const std::lock_guard lock(controls_mutex_);
    flush(its);
  }
  try {
    while (its.over && its.over.read()) {
      its.heard = clock::now();
      std::size_t used = 0;
      for (;;) {
        const auto left = std::as_bytes(std::span(its.over.received())).subspan(used);
        if (left.size() < frame_bytes) break;
        frame head;
        const char* fault = decode(left.first<frame_bytes>(), head);
        if (fault == nullptr && head.kind < frame_kind::goodbye) fault = "it is one of data";
        if (fault != nullptr) return lose(peer, std::string("it sent a malformed frame: ") + fault);
        const auto bytes = static_cast<std::size_t>(head.total);
        if (left.size() < frame_bytes + bytes) break;
        hear(peer, head, left.subspan(frame_bytes, bytes));
        used += frame_bytes + bytes;
      }
      its.over.drop(used);
    }
  } catch (const socket_error& broken) {
    if (its.goodbye) return close(its);
    const bool data_broke = its.suspect_deadline != clock::time_point::max();
    lose(peer, data_broke ? its.failure_reason : broken.as_seen());
  }
}

void connection_manager::hear(int peer, const frame& head, std::span<const std::byte> payload) {
  switch (head.kind) {
    case frame_kind::beat: {
      control_message where;
      where.what = control_message::kind::position;
      where.signature = head.signature;
      return mesh_.hear_notice(peer, head, where);
    }
    case frame_kind::control_message: {
      control_message message;
      if (!decode_notice(payload, message)) return;
      return mesh_.hear_notice(peer, head, message);
    }
    case frame_kind::goodbye:
      of(peer).goodbye = true;
      of(peer).suspect_deadline = clock::time_point::max();
      return mesh_.left(peer);
    default:
      return;
  }
}

// It is gone. What stood may be connected again; what could not be connected is gone for good.
void connection_manager::lose(int peer, const std::string& why) {
  remote& its = of(peer);
  close(its);
  its.suspect_deadline = clock::time_point::max();
  abandon(peer, of(peer).now == stage::up ? stage::broken : stage::failed);
  mesh_.lose(peer, why);
}

void connection_manager::expire(clock::time_point now) {
  for (auto& one : pending_connections_) {
    if (one.over || !one.socket || now < one.until) continue;
    drop(one, "it did not answer in time");
  }
  std::erase_if(pending_connections_, [](const pending_connection& one) { return one.over; });
  // Where this process waits for a processor again and again, the others are late for the same reason.
  const auto promised = std::chrono::duration_cast<clock::duration>(plan_.beat * plan_.missed);
  const auto silence = promised + std::min(16 * usual_lateness_, 20 * promised);
  // The end of a process of this host shows at once: one that is silent was stopped for a while, or is starved.
  const auto silence_here = std::max(silence, std::chrono::duration_cast<clock::duration>(plan_.patience / 2));
  for (std::size_t i = 0; i < remotes_.size(); ++i) {
    const int peer = static_cast<int>(i);
    remote& its = remotes_[i];
    const bool is_here = !its.at.host.empty() && its.at.host == of(rank_).at.host;
    const auto limit = is_here ? silence_here : silence;
    if (now >= its.suspect_deadline) {
      lose(peer, its.failure_reason);
    } else if (its.over && !its.goodbye && now - its.heard > limit) {
      const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
      its.was_silent = true;
      lose(peer, "no heartbeat for " + std::to_string(milliseconds) + " ms");
    }
    const bool waits = its.now == stage::dialing || its.now == stage::answering;
    if (!waits || now < its.until) continue;
    const std::string span = std::to_string(static_cast<int>(plan_.patience.count())) + " s";
    lose(peer, "it could not be connected " + (its.again ? "again" : "in " + span) +
                   (its.trouble.empty() ? "" : ": " + its.trouble));
  }
}

}}}  // namespace muster::v0::detail
