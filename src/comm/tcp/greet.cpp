// The part of the watch that makes connections.
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include <muster/core/log.hpp>

#include "mesh.hpp"

namespace muster::inline v0::detail {
namespace {

// Who connects has so long to prove that it is of the job, and no more than so many are heard at a time.
constexpr std::chrono::seconds for_proof{5};
constexpr std::size_t most_unknown = 128;

clock::duration pause_before(int attempt) {
  constexpr std::chrono::milliseconds first{5};
  constexpr std::chrono::milliseconds last{500};
  return std::min<clock::duration>(first * (1 << std::min(attempt, 8)), last);
}

}  // namespace

// ---- who comes ----

void tcp_watch::answer_doors() {
  for (auto& door : doors_) {
    for (;;) {
      tcp_socket came;
      try {
        came = door.accept();
      } catch (const socket_error&) {
        // No descriptor is left: those that only may be of the job make room for those that are.
        const auto oldest = std::find_if(greetings_.begin(), greetings_.end(),
                                         [](const greeting& one) { return one.inbound && !one.over; });
        if (oldest != greetings_.end()) {
          drop(*oldest, "");
          greetings_.erase(oldest);
          continue;
        }
        doors_open_ = clock::now() + std::chrono::milliseconds(100);
        return;
      }
      if (!came) break;
      const auto unknown = [](const greeting& one) { return one.inbound && !one.over; };
      if (static_cast<std::size_t>(std::count_if(greetings_.begin(), greetings_.end(), unknown)) >= most_unknown)
        drop(*std::find_if(greetings_.begin(), greetings_.end(), unknown), "");
      greetings_.emplace_back(std::move(came), handshake::answer(secret_, static_cast<std::uint32_t>(rank_)));
      greetings_.back().inbound = true;
      greetings_.back().until = clock::now() + for_proof;
    }
  }
}

// ---- going to others ----

void tcp_watch::dial(int peer) {
  pairing& to = pair(peer);
  if (to.now != stage::idle || peer == rank_) return;
  const auto lines = static_cast<std::uint32_t>(plan_.streams + 1);
  to.now = stage::dialing;
  to.ready.resize(lines);
  to.until = deadline_after(plan_.patience);
  for (std::uint32_t k = 0; k < lines; ++k) {
    const introduction mine{static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(peer), k, lines};
    greetings_.emplace_back(tcp_socket(), handshake::connect(secret_, mine));
    greeting& one = greetings_.back();
    one.peer = peer;
    one.line = k;
    dial_line(one);
    if (to.now != stage::dialing) return;  // it has ended
  }
}

void tcp_watch::dial_again(int peer, clock::time_point until) {
  pairing& to = pair(peer);
  if (to.now == stage::failed) return lose(peer, "it could not be connected again: " + to.trouble);
  if (to.now == stage::broken) {
    to.now = stage::idle;
    dial(peer);
  }
  to.until = std::min(to.until, until);
}

// The next of the addresses; streams begin at different ones, so that they use all links of a host that has several.
void tcp_watch::dial_line(greeting& one) {
  const auto& to = peers_[static_cast<std::size_t>(one.peer)].addresses;
  const std::size_t first = one.line == 0 ? 0 : one.line - 1;
  const std::size_t which = (first + static_cast<std::size_t>(one.attempts)) % std::max<std::size_t>(to.size(), 1);
  ++one.attempts;
  try {
    if (to.empty()) throw socket_error(0, "it has no address");
    const introduction mine{static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(one.peer), one.line,
                            static_cast<std::uint32_t>(plan_.streams + 1)};
    one.talk = handshake::connect(secret_, mine);
    one.connecting = true;
    one.until = clock::now() + for_proof;
    one.socket = tcp_socket::start_connect(to[which]);
  } catch (const socket_error& failed) {
    drop(one, failed.what(), failed.code() == ECONNREFUSED);
  }
}

void tcp_watch::advance(greeting& one) {
  if (!one.socket) {
    if (clock::now() >= one.retry) dial_line(one);
    return;
  }
  try {
    if (one.connecting) {
      pollfd ready{one.socket.file(), POLLOUT, 0};
      if (::poll(&ready, 1, 0) != 1) return;
      one.socket.finish_connect();
      one.connecting = false;
      one.socket.set_no_delay();
    }
    talk(one);
  } catch (const socket_error& failed) {
    const bool hung_up = failed.closed() && !one.connecting;
    drop(one, failed.what() + std::string(hung_up ? "; is it of another job, or has it another token?" : ""),
         failed.code() == ECONNREFUSED);
  }
}

void tcp_watch::talk(greeting& one) {
  using state = handshake::state;
  one.talk.advance(one.socket);
  if (one.talk.now() == state::asking) {
    decide(one);
    one.talk.advance(one.socket);
  }
  if (one.talk.now() == state::done) {
    keep(one);
  } else if (one.talk.now() == state::refused) {
    if (!one.inbound && pair(one.peer).again) return drop(one, "it has not seen its connection end");
    one.over = true;  // it connects to us, or it has: so we wait for it
    if (!one.inbound && pair(one.peer).now == stage::dialing) abandon(one.peer, stage::answering);
  } else if (one.talk.now() == state::stranger) {
    drop(one, "who listens at " + one.socket.peer().to_string() + " does not know the secret of this job");
  }
}

// It has proven to be of the job. When both sides connect at the same time, the connection that the lower rank began
// is the one that stays.
void tcp_watch::decide(greeting& one) {
  const introduction& who = one.talk.other();
  const auto lines = static_cast<std::uint32_t>(plan_.streams + 1);
  if (who.from >= pairs_.size() || who.lines != lines) {
    if (who.lines != lines)
      log(log_level::warning, "rank " + std::to_string(who.from) + " has another number of streams (" +
                                  std::to_string(who.lines - 1) + " and here " + std::to_string(lines - 1) +
                                  "); give all ranks the same --streams");
    return one.talk.refuse();
  }
  const int peer = static_cast<int>(who.from);
  pairing& with = pair(peer);
  const auto until = with.now == stage::dialing ? with.until : deadline_after(plan_.patience);
  if (with.now == stage::dialing && peer < rank_) abandon(peer, stage::idle);
  if (with.now == stage::idle || with.now == stage::broken) {
    with.now = stage::answering;
    with.ready.clear();
    with.ready.resize(lines);
    with.count = 0;
    with.until = until;
  }
  one.peer = peer;
  one.line = who.line;
  if (with.now == stage::answering) {
    one.talk.accept();
  } else {
    one.talk.refuse();
  }
}

void tcp_watch::keep(greeting& one) {
  pairing& with = pair(one.peer);
  one.over = true;
  const stage expected = one.inbound ? stage::answering : stage::dialing;
  if (with.now != expected) return;
  one.socket.set_no_delay();
  const seconds silent = std::max(seconds(2), plan_.patience);
  one.socket.set_liveness(std::max(seconds(1), plan_.beat * plan_.missed), silent);
  // Data may wait in the peer's system until its rank calls; heartbeats are always read.
  if (one.line == 0) one.socket.set_acknowledged_within(silent);
  if (!with.ready[one.line]) ++with.count;  // or the first broke before all stood
  with.ready[one.line] = std::move(one.socket);
  if (with.count == with.ready.size()) complete(one.peer);
}

void tcp_watch::complete(int peer) {
  pairing& with = pair(peer);
  with.now = stage::up;
  with.again = true;
  {
    const std::lock_guard lock(lines_mutex_);
    line& of = line_of(peer);
    of.socket = std::move(with.ready.front());
    of.heard = clock::now();
    flush(of);
  }
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

void tcp_watch::drop(greeting& one, const std::string& why, bool refused) {
  one.socket = {};
  if (one.inbound) {
    one.over = true;
    ++strangers_;
    return;
  }
  pair(one.peer).trouble = why;
  {
    const std::lock_guard lock(orders_mutex_);
    troubles_[static_cast<std::size_t>(one.peer)] = why;
  }
  one.retry = clock::now() + pause_before(one.attempts);
  // What has listened there and does not any more has ended.
  one.refusals = refused ? one.refusals + 1 : 0;
  if (pair(one.peer).again && one.refusals >= peers_[static_cast<std::size_t>(one.peer)].addresses.size())
    lose(one.peer, "it has ended: " + why);
}

// Gives up what was done so far to connect to that rank.
void tcp_watch::abandon(int peer, stage next) {
  for (auto& one : greetings_) {
    if (one.peer == peer && !one.inbound) one.over = true;
  }
  pairing& with = pair(peer);
  with.ready.clear();
  with.ready.resize(static_cast<std::size_t>(plan_.streams + 1));
  with.count = 0;
  with.now = next;
}

}  // namespace muster::inline v0::detail
