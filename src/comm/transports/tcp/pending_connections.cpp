// The part of the manager that makes connections.
#include <algorithm>
#include <cerrno>

#include <muster/core/log.hpp>

#include "../../timing.hpp"
#include "mesh.hpp"

namespace muster::inline v0::detail {
namespace {

clock::duration pause_before(int attempt) {
  return std::min<clock::duration>(tcp_timing::first_retry * (1 << std::min(attempt, 8)), tcp_timing::last_retry);
}

}  // namespace

// ---- going to others ----

void connection_manager::dial(int peer) {
  peer_connections& to = connections_to(peer);
  if (to.now != stage::idle || peer == rank_) return;
  to.now = stage::dialing;
  to.ready.resize(static_cast<std::size_t>(plan_.streams + 1));
  to.until = deadline_after(plan_.patience);
  for (std::uint32_t k = 0; k < to.ready.size(); ++k) {
    dial_stream(pending_connections_.emplace_back(
        pending_connection{peer, k, handshake::connect(secret_, introduce(peer, k))}));
    if (to.now != stage::dialing) return;  // it has ended
  }
}

introduction connection_manager::introduce(int peer, std::uint32_t which) const {
  return {static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(peer), which,
          static_cast<std::uint32_t>(plan_.streams + 1)};
}

void connection_manager::dial_again(int peer, clock::time_point until) {
  peer_connections& to = connections_to(peer);
  if (to.now == stage::failed) return lose(peer, "it could not be connected again: " + to.trouble);
  if (to.now == stage::broken) {
    to.now = stage::idle;
    dial(peer);
  }
  to.until = std::min(to.until, until);
}

// The next of the addresses; streams begin at different ones, so that they use all links of a host that has several.
void connection_manager::dial_stream(pending_connection& one) {
  const auto& to = peers_[static_cast<std::size_t>(one.peer)].addresses;
  const std::size_t first = one.stream == 0 ? 0 : one.stream - 1;
  const std::size_t which = (first + static_cast<std::size_t>(one.attempts)) % std::max<std::size_t>(to.size(), 1);
  ++one.attempts;
  try {
    if (to.empty()) throw socket_error(0, "it has no address");
    one.talk = handshake::connect(secret_, introduce(one.peer, one.stream));
    one.connecting = true;
    one.until = clock::now() + tcp_timing::connect_attempt;
    one.socket = tcp_socket::start_connect(to[which]);
    one.ready = loop_.watch(one.socket.file(), EPOLLOUT, [this, &one](std::uint32_t) { advance(one); });
  } catch (const socket_error& failed) {
    drop(one, failed.what(), failed.code() == ECONNREFUSED);
  }
}

void connection_manager::advance(pending_connection& one) {
  if (one.over) return;
  try {
    if (one.connecting) {
      one.socket.finish_connect();
      one.connecting = false;
      one.socket.set_no_delay();
    }
    talk(one);
  } catch (const socket_error& failed) {
    const bool hung_up = failed.closed() && !one.connecting;
    drop(one, failed.what() + std::string(hung_up ? "; it may belong to another job, or have another token" : ""),
         failed.code() == ECONNREFUSED);
  }
}

void connection_manager::talk(pending_connection& one) {
  using state = handshake::state;
  one.talk.advance(one.socket);
  one.ready.want(one.talk.now() == state::sending ? EPOLLOUT : EPOLLIN);
  if (one.talk.now() == state::done) {
    one.over = true;
    one.ready = {};
    keep(one.peer, one.stream, std::move(one.socket), stage::dialing);
  } else if (one.talk.now() == state::refused) {
    if (connections_to(one.peer).again) return drop(one, "it has not seen the end of its earlier connection");
    one.over = true;  // it connects to us, or it has: so we wait for it
    if (connections_to(one.peer).now == stage::dialing) abandon(one.peer, stage::answering);
  } else if (one.talk.now() == state::stranger) {
    drop(one, "the process that listens at " + one.socket.peer().to_string() + " does not have the token of this job");
  }
}

// ---- accepted connections ----

// It has proven to be of the job. When both sides connect at the same time, the connection that the lower rank began
// is the one that stays.
bool connection_manager::wants(const introduction& who) {
  const auto streams = static_cast<std::uint32_t>(plan_.streams + 1);
  if (who.from >= peer_connections_.size() || who.streams != streams) {
    if (who.streams != streams)
      log(log_level::warning, "rank " + std::to_string(who.from) + " has another number of streams (" +
                                  std::to_string(who.streams - 1) + " and here " + std::to_string(streams - 1) +
                                  "); give all ranks the same --streams");
    return false;
  }
  const int peer = static_cast<int>(who.from);
  peer_connections& with = connections_to(peer);
  const auto until = with.now == stage::dialing ? with.until : deadline_after(plan_.patience);
  if (with.now == stage::dialing && peer < rank_) abandon(peer, stage::idle);
  if (with.now == stage::idle || with.now == stage::broken) {
    with.now = stage::answering;
    with.ready.clear();
    with.ready.resize(streams);
    with.count = 0;
    with.until = until;
  }
  return with.now == stage::answering;
}

void connection_manager::keep(int peer, std::uint32_t which, tcp_socket socket, stage expected) {
  peer_connections& with = connections_to(peer);
  if (with.now != expected) return;
  try {
    socket.set_no_delay();
    const seconds silent = std::max(seconds(2), plan_.patience);
    socket.set_liveness(std::max(seconds(1), plan_.beat * plan_.missed), silent);
    // Data may wait in the peer's system until its rank calls; heartbeats are always read.
    if (which == 0) socket.set_acknowledged_within(silent);
  } catch (const socket_error&) {  // it has broken already, which is seen by reading
  }
  if (!with.ready[which]) ++with.count;  // or the first broke before all stood
  with.ready[which] = std::move(socket);
  if (with.count == with.ready.size()) complete(peer);
}

void connection_manager::complete(int peer) {
  peer_connections& with = connections_to(peer);
  with.now = stage::up;
  with.again = true;
  control_connection& of = control_of(peer);
  {
    const std::lock_guard lock(controls_mutex_);
    std::string before = std::exchange(of.over.outgoing(), {});  // that was posted before there was a connection
    of.over = connection(std::move(with.ready.front()));
    of.over.outgoing() = std::move(before);
    of.heard = clock::now();
    flush(of);
  }
  of.ready = loop_.watch(of.over.socket().file(), EPOLLIN, [this, peer](std::uint32_t) { listen(peer); });
  std::vector<tcp_socket> streams;
  const bool same_machine = peers_[static_cast<std::size_t>(peer)].host == peers_[static_cast<std::size_t>(rank_)].host;
  for (std::size_t i = 1; i < with.ready.size(); ++i) {
    if (same_machine) with.ready[i].set_unpaced();
    streams.push_back(std::move(with.ready[i]));
  }
  with.ready.clear();
  mesh_.attach(peer, std::move(streams));
}

// ---- what comes to nothing ----

void connection_manager::drop(pending_connection& one, const std::string& why, bool refused) {
  one.ready = {};
  one.socket = {};
  {
    const std::lock_guard lock(controls_mutex_);
    connections_to(one.peer).trouble = why;
  }
  one.retry = clock::now() + pause_before(one.attempts);
  // What has listened there and does not any more has ended.
  one.refusals = refused ? one.refusals + 1 : 0;
  if (connections_to(one.peer).again && one.refusals >= peers_[static_cast<std::size_t>(one.peer)].addresses.size())
    lose(one.peer, "it has ended: " + why);
}

// Gives up what was done so far to connect to that rank.
void connection_manager::abandon(int peer, stage next) {
  for (auto& one : pending_connections_) {
    if (one.peer == peer) one.over = true;
  }
  peer_connections& with = connections_to(peer);
  with.ready.clear();
  with.ready.resize(static_cast<std::size_t>(plan_.streams + 1));
  with.count = 0;
  with.now = next;
}

}  // namespace muster::inline v0::detail
