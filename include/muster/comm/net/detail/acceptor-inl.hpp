#pragma once

#include <muster/comm/net/acceptor.hpp>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <muster/comm/comm_timing.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr int max_accepts_per_turn = 64;  // limits a turn, so that established connections do not wait

MUSTER_INLINE acceptor::acceptor(event_loop& loop, std::vector<tcp_socket> listeners, const job_secret& secret,
                                 std::uint32_t self, std::size_t max_pending, judge accepts, taker on_accepted)
    : loop_(loop),
      secret_(secret),
      self_(self),
      max_pending_(max_pending),
      accepts_(std::move(accepts)),
      on_accepted_(std::move(on_accepted)) {
  for (auto& socket : listeners) {
    auto& listener_entry = listeners_.emplace_back(listener{std::move(socket)});
    listener_entry.ready = loop_.watch(listener_entry.socket.file(), EPOLLIN,
                                       [this, &listener_entry](std::uint32_t) { accept(listener_entry.socket); });
  }
}

MUSTER_INLINE void acceptor::accept(const tcp_socket& listener_socket) {
  for (int i = 0; i < max_accepts_per_turn; ++i) {
    try {
      auto accepted = listener_socket.accept();
      if (!accepted) return;
      trouble_ = 0;
      if (pending_.size() >= max_pending_) drop(pending_.begin());
      const auto connection = pending_.insert(pending_.end(), {std::move(accepted), handshake::answer(secret_, self_),
                                                               clock::now() + net_timing::handshake});
      connection->ready = loop_.watch(connection->socket.file(), EPOLLIN,
                                      [this, connection](std::uint32_t) { (void)advance(connection); });
    } catch (const error& failed) {
      // No descriptor is left: pending connections make room for new ones, which may be of the job.
      if (!pending_.empty()) {
        drop(pending_.begin());
        continue;
      }
      const auto* const of_system = dynamic_cast<const socket_error*>(&failed);
      trouble_ = of_system != nullptr ? of_system->code() : EMFILE;
      if (!std::exchange(is_reported_, true))
        log(log_level::error, failed.what() + std::string("; raise its limit (ulimit -n)"));
      for (auto& entry : listeners_) entry.ready.set_events(0);
      closed_until_ = clock::now() + net_timing::accept_retry;
      return;
    }
  }
}

// Advances the handshake by the bytes that have arrived. Returns true if the connection is still pending.
MUSTER_INLINE bool acceptor::advance(std::list<pending_connection>::iterator connection) {
  using state = handshake::state;
  try {
    connection->exchange.advance(connection->socket);
    if (connection->exchange.current_state() == state::asking) {
      if (accepts_(connection->exchange.peer())) {
        connection->exchange.accept();
      } else {
        connection->exchange.refuse();
      }
      connection->exchange.advance(connection->socket);
    }
  } catch (const socket_error&) {
    drop(connection);
    return false;
  }
  const auto reached = connection->exchange.current_state();
  if (reached == state::stranger) {
    drop(connection);
    return false;
  }
  connection->ready.set_events(reached == state::sending ? EPOLLOUT : EPOLLIN);
  if (reached != state::done && reached != state::refused) return true;
  const auto introduced = connection->exchange.peer();
  connection->ready = {};
  auto socket = std::move(connection->socket);
  pending_.erase(connection);
  if (reached == state::done) on_accepted_(std::move(socket), introduced);
  return false;
}

MUSTER_INLINE void acceptor::drop(std::list<pending_connection>::iterator connection) {
  pending_.erase(connection);
  ++unauthenticated_;
}

MUSTER_INLINE void acceptor::tick(clock::time_point now) {
  while (!pending_.empty() && now >= pending_.front().until) {
    const auto oldest = pending_.begin();
    if (advance(oldest)) drop(oldest);  // bytes that waited for this thread are in time
  }
  if (now < closed_until_) return;
  closed_until_ = clock::time_point::max();
  for (auto& entry : listeners_) entry.ready.set_events(EPOLLIN);
}

MUSTER_INLINE void acceptor::close() noexcept {
  listeners_.clear();
  pending_.clear();
}

MUSTER_INLINE clock::time_point acceptor::next() const noexcept {
  return pending_.empty() ? closed_until_ : std::min(closed_until_, pending_.front().until);
}

}}}  // namespace muster::v0::detail
