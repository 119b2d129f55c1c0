// The part of the manager that makes connections.
#include <algorithm>
#include <cerrno>

#include "../../timing.hpp"
#include "mesh.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

clock::duration pause_before(int attempt) {
  return std::min<clock::duration>(tcp_timing::first_retry * (1 << std::min(attempt, 8)), tcp_timing::last_retry);
}

}  // namespace

// ---- going to others ----

void connection_manager::dial(int peer) {
  remote& to = of(peer);
  if (to.now != stage::idle || peer == rank_) return;
  to.now = stage::dialing;
  to.until = deadline_after(plan_.patience);
  for (std::uint32_t k = 0; k < to.made.size(); ++k) {
    dial_one(pending_connections_.emplace_back(pending_connection{peer, k}));
    if (to.now != stage::dialing) return;  // it has ended
  }
}

void connection_manager::dial_again(int peer, clock::time_point until) {
  remote& to = of(peer);
  if (to.now == stage::failed) return lose(peer, "it could not be connected again: " + to.trouble);
  if (to.now == stage::broken) {
    to.now = stage::idle;
    dial(peer);
  }
  // One that was silent was perhaps stopped, and then its connections cannot be made either until it goes on.
  if (!to.was_silent) to.until = std::min(to.until, until);
}

// The next of the addresses.
void connection_manager::dial_one(pending_connection& one) {
  const auto& to = of(one.peer).at.addresses;
  const address& next = to[static_cast<std::size_t>(one.attempts++) % to.size()];
  try {
    one.talk = handshake::connect(secret_,
                                  {static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(one.peer), one.which});
    one.connecting = true;
    one.until = clock::now() + tcp_timing::connect_attempt;
    one.socket = tcp_socket::start_connect(next);
    one.ready = loop_.watch(one.socket.file(), EPOLLOUT, [this, &one](std::uint32_t) { advance(one); });
  } catch (const socket_error& failed) {
    const bool is_out_of_descriptors = failed.code() == EMFILE || failed.code() == ENFILE;
    drop(one, failed.what(), failed.code() == ECONNREFUSED);
    if (is_out_of_descriptors && !of(one.peer).again) {
      dial_trouble_ = failed.code();
      lose(one.peer, failed.what() + std::string("; raise the limit (ulimit -n)"));
    }
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
    one.talk->advance(one.socket);
  } catch (const socket_error& failed) {
    const bool hung_up = failed.closed() && !one.connecting;
    return drop(one,
                failed.what() + std::string(hung_up ? "; it may belong to another job, or have another token" : ""),
                failed.code() == ECONNREFUSED);
  }
  using state = handshake::state;
  const auto now = one.talk->now();
  one.ready.want(now == state::sending ? EPOLLOUT : EPOLLIN);
  if (now == state::done) {
    one.over = true;
    one.ready = {};
    keep(one.peer, one.which, std::move(one.socket), stage::dialing);
  } else if (now == state::refused) {
    if (of(one.peer).again) return drop(one, "it has not seen the end of its earlier connection");
    one.over = true;  // it connects to us, or it has: so we wait for it
    if (of(one.peer).now == stage::dialing) abandon(one.peer, stage::answering);
  } else if (now == state::stranger) {
    drop(one, "the process that listens at " + one.socket.peer().to_string() + " does not have the token of this job");
  }
}

// ---- accepted connections ----

// It has proven to be of the job. When both sides connect at the same time, the connection that the lower rank began
// is the one that stays.
bool connection_manager::wants(const introduction& said) {
  const int peer = static_cast<int>(said.from);
  if (said.from >= remotes_.size() || said.which >= of(peer).made.size()) return false;
  remote& with = of(peer);
  const auto until = with.now == stage::dialing ? with.until : deadline_after(plan_.patience);
  if (with.now == stage::dialing && peer < rank_) abandon(peer, stage::idle);
  if (with.now == stage::idle || with.now == stage::broken) {
    with.now = stage::answering;
    with.made = {};
    with.until = until;
  }
  return with.now == stage::answering;
}

void connection_manager::keep(int peer, std::uint32_t which, tcp_socket socket, stage expected) {
  remote& with = of(peer);
  if (with.now != expected) return;
  try {
    socket.set_no_delay();
    const seconds silent = std::max(seconds(2), plan_.patience);
    socket.set_liveness(std::max(seconds(1), plan_.beat * plan_.missed), silent);
    // Data may wait in the peer's system until its rank calls; heartbeats are always read.
    if (which == 0) socket.set_acknowledged_within(silent);
  } catch (const socket_error&) {  // it has broken already, which is seen by reading
  }
  with.made[which] = std::move(socket);
  if (with.made[0] && with.made[1]) complete(peer);
}

void connection_manager::complete(int peer) {
  remote& its = of(peer);
  its.now = stage::up;
  its.again = true;
  its.was_silent = false;
  {
    const std::lock_guard lock(controls_mutex_);
    std::string before = std::exchange(its.over.outgoing(), {});  // that was posted before there was a connection
    its.over = connection(std::move(its.made[0]));
    its.over.outgoing() = std::move(before);
    its.heard = clock::now();
    flush(its);
  }
  its.ready = loop_.watch(its.over.socket().file(), EPOLLIN, [this, peer](std::uint32_t) { listen(peer); });
  const bool same_machine = of(peer).at.host == of(rank_).at.host;
  if (same_machine) its.made[1].set_unpaced();
  mesh_.attach(peer, std::move(its.made[1]));
}

// ---- what comes to nothing ----

void connection_manager::drop(pending_connection& one, const std::string& why, bool refused) {
  one.ready = {};
  one.socket = {};
  {
    const std::lock_guard lock(controls_mutex_);
    of(one.peer).trouble = why;
  }
  one.retry = clock::now() + pause_before(one.attempts);
  // What has listened there and does not any more has ended.
  one.refusals = refused ? one.refusals + 1 : 0;
  if (of(one.peer).again && one.refusals >= of(one.peer).at.addresses.size()) lose(one.peer, "it has ended: " + why);
}

// Gives up what was done so far to connect to that rank.
void connection_manager::abandon(int peer, stage next) {
  for (auto& one : pending_connections_) {
    if (one.peer == peer) one.over = true;
  }
  remote& with = of(peer);
  with.made = {};
  with.now = next;
}

}}}  // namespace muster::v0::detail
