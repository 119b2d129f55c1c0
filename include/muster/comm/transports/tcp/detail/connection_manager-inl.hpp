#pragma once

#include <muster/comm/transports/tcp/connection_manager.hpp>

#include <algorithm>

#include <muster/comm/comm_timing.hpp>
#include <muster/comm/transports/tcp/mesh.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>

namespace muster { inline namespace v0 { namespace detail {
// An abort message needs a few hundred bytes. A peer that reads nothing is about to be lost.
inline constexpr std::size_t max_unsent = std::size_t{1} << 20;
inline constexpr std::size_t max_unsent_optional = std::size_t{64} << 10;

// Largest number of accepted connections that are not authenticated yet, beside two of each peer.
inline constexpr std::size_t max_strangers = 128;

inline clock::duration interval_of(seconds span) { return std::chrono::duration_cast<clock::duration>(span); }

MUSTER_INLINE connection_manager::connection_manager(tcp_mesh& mesh, std::vector<tcp_peer> peers,
                                                     std::vector<tcp_socket> listeners, const job_secret& secret)
    : mesh_(mesh),
      plan_(mesh.plan_),
      rank_(mesh.rank_),
      secret_(secret),
      acceptor_(
          loop_, std::move(listeners), secret, static_cast<std::uint32_t>(rank_), max_strangers + 2 * peers.size(),
          [this](const introduction& identity) { return accepts_connection(identity); },
          [this](tcp_socket socket, const introduction& identity) {
            add_connection(static_cast<int>(identity.sender), identity.channel, std::move(socket), stage::accepting);
          }),
      remotes_(peers.size()) {
  for (std::size_t i = 0; i < peers.size(); ++i) remotes_[i].info = std::move(peers[i]);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

MUSTER_INLINE connection_manager::~connection_manager() {
  thread_.request_stop();
  loop_.wake();
}

// ---- from other threads ----

MUSTER_INLINE std::string connection_manager::last_connect_error(int peer) {
  const std::lock_guard lock(controls_mutex_);
  return remote_of(peer).last_error;
}

MUSTER_INLINE void connection_manager::request_connection(int peer, clock::time_point deadline) {
  const bool is_retry = deadline != clock::time_point::max();
  loop_.post([=, this] { is_retry ? reconnect(peer, deadline) : start_connecting(peer); });
}

MUSTER_INLINE void connection_manager::report_broken_link(int peer, const std::string& reason) {
  loop_.post([=, this] {
    remote_peer& remote = remote_of(peer);
    if (remote.state != stage::connected || remote.has_departed) return;  // otherwise the failure is known already
    remote.suspect_deadline = std::min(remote.suspect_deadline, clock::now() + transport_timing::late_control_message);
    remote.failure_reason = reason;
  });
}

MUSTER_INLINE void connection_manager::send_control_frame(int peer, frame head, std::span<const std::byte> payload,
                                                          bool is_required) {
  head.total = payload.size();
  const auto header = encode(head);
  bool unsent = false;
  {
    const std::lock_guard lock(controls_mutex_);
    remote_peer& remote = remote_of(peer);
    if (remote.control.unsent() > (is_required ? max_unsent : max_unsent_optional)) return;
    auto& out = remote.control.outgoing();
    out.append(reinterpret_cast<const char*>(header.data()), header.size());
    out.append(reinterpret_cast<const char*>(payload.data()), payload.size());
    if (remote.control) flush(remote);
    unsent = remote.control.unsent() > 0;
  }
  if (unsent) loop_.wake();
}

MUSTER_INLINE void connection_manager::send_goodbyes(clock::time_point deadline) {
  frame goodbye;
  goodbye.kind = frame_kind::goodbye;
  for (std::size_t peer = 0; peer < remotes_.size(); ++peer) {
    {
      const std::lock_guard lock(controls_mutex_);
      if (!remotes_[peer].control) continue;
    }
    send_control_frame(static_cast<int>(peer), goodbye, {}, true);
  }
  // The peer's system has acknowledged all bytes: this process can then end without loss.
  const auto all_written = [&] {
    const std::lock_guard lock(controls_mutex_);
    return std::all_of(remotes_.begin(), remotes_.end(), [&](remote_peer& remote) {
      if (!remote.control) return true;
      flush(remote);
      return remote.control.unsent() == 0 && !has_unsent_bytes(remote.control.socket().file());
    });
  };
  while (!all_written() && clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// ---- the thread ----

MUSTER_INLINE void connection_manager::run(const std::stop_token& stop) {
  last_turn_ = next_heartbeat_ = clock::now();
  while (!stop.stop_requested()) {
    loop_.wait(next_event());
    try {
      // Data that waited for this thread is no silence: the sender is not late.
      const auto now = clock::now();
      const auto pause = now - last_turn_;
      last_turn_ = now;
      if (pause > 2 * interval_of(plan_.beat)) {
        for (auto& peer : remotes_) peer.last_received = now;
        for (auto& attempt : pending_connections_) attempt.deadline += pause;
      }
      loop_.dispatch();
      acceptor_.tick(now);
      for (auto& attempt : pending_connections_) {
        if (!attempt.finished && !attempt.socket && now >= attempt.retry_time) start_attempt(attempt);
      }
      expire(now);
      if (now >= next_heartbeat_) send_heartbeats();
      const std::lock_guard lock(controls_mutex_);
      for (auto& peer : remotes_) {
        const bool has_unsent = peer.control && peer.control.unsent() > 0;
        peer.ready.set_events(EPOLLIN | (has_unsent ? EPOLLOUT : 0U));
      }
    } catch (const std::exception& failed) {
      log(log_level::error, std::string("an error in the thread of the heartbeats: ") + failed.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

MUSTER_INLINE clock::time_point connection_manager::next_event() const {
  auto next = std::min(std::max(next_heartbeat_, last_turn_), acceptor_.next());
  for (const auto& attempt : pending_connections_) {
    next = std::min(next, attempt.socket ? attempt.deadline : attempt.retry_time);
  }
  for (const auto& peer : remotes_) next = std::min(next, peer.suspect_deadline);
  return next;
}

// ---- heartbeats ----

MUSTER_INLINE void connection_manager::send_heartbeats() {
  const auto now = clock::now();
  usual_lateness_ += (now - next_heartbeat_ - usual_lateness_) / 16;
  next_heartbeat_ += interval_of(plan_.beat);
  if (next_heartbeat_ < now) next_heartbeat_ = now + interval_of(plan_.beat);
  mesh_.flush_urgent();
  const frame beat = heartbeat();
  const bool includes_neighbours = now >= next_local_heartbeat_;
  if (includes_neighbours) next_local_heartbeat_ = now + local_interval() - interval_of(plan_.beat) / 2;
  for (std::size_t peer = 0; peer < remotes_.size(); ++peer) {
    if (!remotes_[peer].control || (remotes_[peer].is_on_this_host && !includes_neighbours)) continue;
    send_control_frame(static_cast<int>(peer), beat, {}, false);
  }
}

// Returns the time for which a connected peer on this host may be silent. The end of a process here is detected at
// once: a silent process was stopped for a while, or waits for a processor.
MUSTER_INLINE clock::duration connection_manager::local_silence() const {
  return interval_of(plan_.connect_timeout / 2);
}

// Returns the interval of the heartbeats to peers on this host. Each of n ranks sends to n - 1 peers: where ranks share
// cores the interval grows, so that heartbeats take a limited share of the processors.
MUSTER_INLINE clock::duration connection_manager::local_interval() const {
  const seconds longest = seconds(local_silence()) / (2 * plan_.missed_heartbeats);
  return interval_of(std::max(plan_.beat, std::min(plan_.beat * mesh_.most_ranks_a_core(), longest)));
}

MUSTER_INLINE frame connection_manager::heartbeat() {
  frame beat = mesh_.position();
  beat.kind = frame_kind::beat;
  return beat;
}

MUSTER_INLINE void connection_manager::flush(remote_peer& peer) {
  try {
    peer.control.write();
  } catch (const socket_error&) {  // the thread detects the failure when it reads
    peer.control.drop_unsent();
  }
}

MUSTER_INLINE void connection_manager::close(remote_peer& peer) {
  peer.ready = {};
  const std::lock_guard lock(controls_mutex_);
  peer.control = {};
}

MUSTER_INLINE void connection_manager::read_control(int peer) {
  remote_peer& remote = remote_of(peer);
  {
    const std::lock_guard lock(controls_mutex_);
    flush(remote);
  }
  try {
    while (remote.control && remote.control.read()) {
      remote.last_received = clock::now();
      std::size_t consumed = 0;
      for (;;) {
        const auto remaining = std::as_bytes(std::span(remote.control.received())).subspan(consumed);
        if (remaining.size() < frame_bytes) break;
        frame head;
        const char* fault = decode(remaining.first<frame_bytes>(), head);
        if (fault == nullptr && head.kind < frame_kind::goodbye) fault = "it belongs on the data connection";
        if (fault != nullptr) return lose_peer(peer, std::string("it sent a malformed frame: ") + fault);
        const auto bytes = static_cast<std::size_t>(head.total);
        if (remaining.size() < frame_bytes + bytes) break;
        on_control_frame(peer, head, remaining.subspan(frame_bytes, bytes));
        consumed += frame_bytes + bytes;
      }
      remote.control.drop(consumed);
    }
  } catch (const socket_error& failed) {
    if (remote.has_departed) return close(remote);
    const bool data_broke = remote.suspect_deadline != clock::time_point::max();
    lose_peer(peer, data_broke ? remote.failure_reason : failed.describe_observation());
  }
}

MUSTER_INLINE void connection_manager::on_control_frame(int peer, const frame& head,
                                                        std::span<const std::byte> payload) {
  switch (head.kind) {
    case frame_kind::beat: {
      control_message position;
      position.type = control_message::kind::position;
      position.signature = head.signature;
      return mesh_.on_control_message(peer, head, position);
    }
    case frame_kind::control_message: {
      control_message message;
      if (!decode_control_message(payload, message)) return;
      return mesh_.on_control_message(peer, head, message);
    }
    case frame_kind::goodbye:
      remote_of(peer).has_departed = true;
      remote_of(peer).suspect_deadline = clock::time_point::max();
      return mesh_.on_departure(peer);
    default:
      return;
  }
}

// Declares the peer lost. A peer that was connected may be connected again. A peer that could not be connected is lost
// for good.
MUSTER_INLINE void connection_manager::lose_peer(int peer, const std::string& reason) {
  remote_peer& remote = remote_of(peer);
  close(remote);
  remote.suspect_deadline = clock::time_point::max();
  abandon_attempts(peer, remote_of(peer).state == stage::connected ? stage::broken : stage::failed);
  mesh_.on_lost(peer, reason);
}

MUSTER_INLINE void connection_manager::expire(clock::time_point now) {
  for (auto& attempt : pending_connections_) {
    if (attempt.finished || !attempt.socket || now < attempt.deadline) continue;
    fail_attempt(attempt, "it did not answer in time");
  }
  std::erase_if(pending_connections_, [](const pending_connection& attempt) { return attempt.finished; });
  // If this process repeatedly waits for a processor, the other processes may be late for the same reason.
  const auto configured = interval_of(plan_.beat * plan_.missed_heartbeats);
  const auto silence = configured + std::min(16 * usual_lateness_, 20 * configured);
  for (std::size_t i = 0; i < remotes_.size(); ++i) {
    const int peer = static_cast<int>(i);
    remote_peer& remote = remotes_[i];
    const auto longest_silence = remote.is_on_this_host ? std::max(silence, local_silence()) : silence;
    if (now >= remote.suspect_deadline) {
      lose_peer(peer, remote.failure_reason);
    } else if (remote.control && !remote.has_departed && now - remote.last_received > longest_silence) {
      const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(longest_silence).count();
      remote.was_silent = true;
      lose_peer(peer, "no heartbeat for " + std::to_string(milliseconds) + " ms");
    }
    const bool is_pending = remote.state == stage::connecting || remote.state == stage::accepting;
    if (!is_pending || now < remote.deadline) continue;
    const std::string limit = std::to_string(static_cast<int>(plan_.connect_timeout.count())) + " s";
    lose_peer(peer, "it could not be connected " + (remote.was_connected ? "again" : "in " + limit) +
                        (remote.last_error.empty() ? "" : ": " + remote.last_error));
  }
}

}}}  // namespace muster::v0::detail
