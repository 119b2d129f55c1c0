// The functions of the connection manager that make connections.
#pragma once

#include <muster/comm/transports/tcp/connection_manager.hpp>

#include <algorithm>
#include <cerrno>

#include <muster/comm/comm_timing.hpp>
#include <muster/comm/transports/tcp/mesh.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
// Returns the interval before the next attempt, after `attempts` attempts.
inline clock::duration retry_delay(int attempts) {
  const int doublings = std::clamp(attempts - 1, 0, 8);
  return std::min<clock::duration>(tcp_timing::first_retry * (1 << doublings), tcp_timing::last_retry);
}

// Returns the time limit for an attempt after `rounds` attempts at each address. The limit grows, so that a peer that
// waits for a processor longer than `connect_attempt` can answer, too.
inline clock::duration attempt_limit(std::size_t rounds) {
  return tcp_timing::connect_attempt * (1 << std::min<std::size_t>(rounds, 4));
}

// ---- connecting to peers ----

MUSTER_INLINE void connection_manager::start_connecting(int peer) {
  remote_peer& remote = remote_of(peer);
  if (remote.state != stage::idle || peer == rank_) return;
  remote.state = stage::connecting;
  remote.deadline = deadline_after(plan_.connect_timeout);
  for (std::uint32_t k = 0; k < remote.sockets.size(); ++k) {
    start_attempt(pending_connections_.emplace_back(pending_connection{peer, k}));
    if (remote.state != stage::connecting) return;  // the peer is lost
  }
}

MUSTER_INLINE void connection_manager::reconnect(int peer, clock::time_point deadline) {
  remote_peer& remote = remote_of(peer);
  if (remote.state == stage::failed) return lose_peer(peer, "it could not be connected again: " + remote.last_error);
  if (remote.state == stage::broken) {
    remote.state = stage::idle;
    start_connecting(peer);
  }
  // A peer whose heartbeats were missing may be stopped. Its connections can be made only after it resumes, so the
  // deadline is not shortened.
  if (!remote.was_silent) remote.deadline = std::min(remote.deadline, deadline);
}

// Starts the next attempt, at the peer's next address.
MUSTER_INLINE void connection_manager::start_attempt(pending_connection& attempt) {
  const auto& addresses = remote_of(attempt.peer).info.addresses;
  const auto earlier_attempts = static_cast<std::size_t>(attempt.attempts++);
  const address& target = addresses[earlier_attempts % addresses.size()];
  try {
    attempt.negotiation = handshake::connect(
        secret_,
        {static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(attempt.peer), attempt.connection_index});
    attempt.is_connecting = true;
    attempt.deadline = clock::now() + attempt_limit(earlier_attempts / addresses.size());
    attempt.socket = tcp_socket::start_connect(target);
    attempt.ready = loop_.watch(attempt.socket.file(), EPOLLOUT, [this, &attempt](std::uint32_t) { advance(attempt); });
  } catch (const socket_error& failure) {
    const bool is_out_of_descriptors = failure.code() == EMFILE || failure.code() == ENFILE;
    fail_attempt(attempt, failure.what(), failure.code() == ECONNREFUSED);
    if (is_out_of_descriptors && !remote_of(attempt.peer).was_connected) {
      connect_error_ = failure.code();
      lose_peer(attempt.peer, failure.what());
    }
  }
}

// Advances an attempt until it has to wait: connects the socket, then runs the handshake.
MUSTER_INLINE void connection_manager::advance(pending_connection& attempt) {
  if (attempt.finished) return;
  try {
    if (attempt.is_connecting) {
      attempt.socket.finish_connect();
      attempt.is_connecting = false;
      attempt.socket.set_no_delay();
    }
    attempt.negotiation->advance(attempt.socket);
  } catch (const socket_error& failure) {
    const bool hung_up = failure.closed() && !attempt.is_connecting;
    return fail_attempt(
        attempt,
        failure.what() + std::string(hung_up ? "; the peer may belong to another job, or have another token" : ""),
        failure.code() == ECONNREFUSED);
  }
  using handshake_state = handshake::state;
  const auto state = attempt.negotiation->current_state();
  attempt.ready.set_events(state == handshake_state::sending ? EPOLLOUT : EPOLLIN);
  if (state == handshake_state::done) {
    attempt.finished = true;
    attempt.ready = {};
    add_connection(attempt.peer, attempt.connection_index, std::move(attempt.socket), stage::connecting);
  } else if (state == handshake_state::refused) {
    if (remote_of(attempt.peer).was_connected)
      return fail_attempt(attempt, "the peer has not detected the end of the earlier connection");
    // the peer connects to this process, or has done so: this process waits for that connection
    attempt.finished = true;
    if (remote_of(attempt.peer).state == stage::connecting) abandon_attempts(attempt.peer, stage::accepting);
  } else if (state == handshake_state::stranger) {
    const auto& difference = attempt.negotiation->protocol_difference();
    fail_attempt(attempt, "the process that listens at " + attempt.socket.peer().to_string() +
                              (difference.empty() ? " does not have the token of this job"
                                                  : " has another protocol " + difference));
  }
}

// ---- accepted connections ----

// Returns true if this process accepts the connection of an authenticated peer. When both sides connect at the same
// time, the connection of the lower rank is kept.
MUSTER_INLINE bool connection_manager::accepts_connection(const introduction& identity) {
  const int peer = static_cast<int>(identity.sender);
  if (identity.sender >= remotes_.size() || identity.channel >= remote_of(peer).sockets.size()) return false;
  remote_peer& remote = remote_of(peer);
  const auto deadline = remote.state == stage::connecting ? remote.deadline : deadline_after(plan_.connect_timeout);
  if (remote.state == stage::connecting && peer < rank_) abandon_attempts(peer, stage::idle);
  if (remote.state == stage::idle || remote.state == stage::broken) {
    remote.state = stage::accepting;
    remote.sockets = {};
    remote.deadline = deadline;
  }
  return remote.state == stage::accepting;
}

// Stores a connection that is ready. `expected` is the stage of the attempts to which the connection belongs.
MUSTER_INLINE void connection_manager::add_connection(int peer, std::uint32_t connection_index, tcp_socket socket,
                                                      stage expected) {
  remote_peer& remote = remote_of(peer);
  if (remote.state != expected) return;
  try {
    // A peer that did not receive an answer in time has closed this connection, and connects again.
    if (expected == stage::accepting) (void)socket.has_input();
    socket.set_no_delay();
    const seconds silent = std::max(seconds(2), plan_.connect_timeout);
    socket.set_liveness(std::max(seconds(1), plan_.beat * plan_.missed_heartbeats), silent);
    // Data may wait in the peer's system until the peer reads. Heartbeats are always read.
    if (connection_index == 0) socket.set_acknowledged_within(silent);
  } catch (const socket_error&) {
    if (expected == stage::accepting) return;
    // the socket is broken already, and the next read detects that
  }
  remote.ready = {};
  remote.sockets[connection_index] = std::move(socket);
  if (!remote.sockets[0] || !remote.sockets[1]) return;
  if (expected == stage::connecting) return complete_connections(peer);
  remote.ready =
      loop_.watch(remote.sockets[0].file(), EPOLLIN, [this, peer](std::uint32_t) { read_confirmation(peer); });
}

// Completes the accepted connections when the connecting peer has sent its first bytes: the peer has both connections
// then. A peer that closes a connection earlier did not receive the answer in time, and connects again.
MUSTER_INLINE void connection_manager::read_confirmation(int peer) {
  remote_peer& remote = remote_of(peer);
  try {
    if (remote.sockets[0].has_input()) complete_connections(peer);
  } catch (const socket_error&) {
    remote.ready = {};
    remote.sockets[0] = {};
  }
}

MUSTER_INLINE void connection_manager::complete_connections(int peer) {
  remote_peer& remote = remote_of(peer);
  remote.ready = {};
  remote.state = stage::connected;
  remote.was_connected = true;
  remote.was_silent = false;
  {
    const std::lock_guard lock(controls_mutex_);
    // control frames that were sent before there was a connection
    std::string queued = std::exchange(remote.control.outgoing(), {});
    remote.control = connection(std::move(remote.sockets[0]));
    remote.control.outgoing() = std::move(queued);
    remote.last_received = clock::now();
    const tcp_socket& socket = remote.control.socket();
    remote.is_on_this_host = socket.local().with_port(0) == socket.peer().with_port(0);
    flush(remote);
  }
  remote.ready =
      loop_.watch(remote.control.socket().file(), EPOLLIN, [this, peer](std::uint32_t) { read_control(peer); });
  const bool same_machine = remote_of(peer).info.host == remote_of(rank_).info.host;
  if (same_machine) remote.sockets[1].set_unpaced();
  mesh_.attach(peer, std::move(remote.sockets[1]));
  send_control_frame(peer, heartbeat(), {}, true);  // confirms the connections to a peer that has accepted them
}

// ---- failed attempts ----

MUSTER_INLINE void connection_manager::fail_attempt(pending_connection& attempt, const std::string& reason,
                                                    bool refused) {
  attempt.ready = {};
  attempt.socket = {};
  {
    const std::lock_guard lock(controls_mutex_);
    remote_of(attempt.peer).last_error = reason;
  }
  attempt.retry_time = clock::now() + retry_delay(attempt.attempts);
  // A process that listened at the addresses and no longer does has ended.
  attempt.refusals = refused ? attempt.refusals + 1 : 0;
  if (remote_of(attempt.peer).was_connected && attempt.refusals >= remote_of(attempt.peer).info.addresses.size())
    lose_peer(attempt.peer, "it has ended: " + reason);
}

// Abandons all attempts to connect to the peer, and enters the stage `next`.
MUSTER_INLINE void connection_manager::abandon_attempts(int peer, stage next) {
  for (auto& attempt : pending_connections_) {
    if (attempt.peer == peer) attempt.finished = true;
  }
  remote_peer& remote = remote_of(peer);
  remote.ready = {};
  remote.sockets = {};
  remote.state = next;
}

}}}  // namespace muster::v0::detail
