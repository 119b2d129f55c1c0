// Pending connections to this process: each is kept for a short time, until its peer has proved that it knows the
// secret.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include <muster/comm/net/event_loop.hpp>
#include <muster/comm/net/handshake.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Accepts connections and performs their handshakes, on an event loop. Any process can connect, but only an
/// authenticated one proceeds. A peer that does not prove within five seconds that it knows the secret is dropped. The
/// oldest pending connection is dropped first when there are many or no descriptor is left. No call waits for a pending
/// connection.
class acceptor {
 public:
  /// Decides about the connection of an authenticated peer: true accepts the connection, false refuses it. The peer
  /// receives the reply.
  using judge = std::function<bool(const introduction&)>;
  /// Takes over an established connection.
  using taker = std::function<void(tcp_socket, const introduction&)>;

  /// Starts to accept. `listeners`: sockets that listen; `self`: the receiver that peers must name in their
  /// introduction; `max_pending`: highest number of pending connections.
  acceptor(event_loop& loop, std::vector<tcp_socket> listeners, const job_secret& secret, std::uint32_t self,
           std::size_t max_pending, judge accepts, taker on_accepted);

  /// Drops pending connections whose time has passed, and accepts again after a failure to accept. Call it at `next` at
  /// the latest.
  void tick(clock::time_point now);
  /// Returns the time at which the next `tick` is due.
  [[nodiscard]] clock::time_point next() const noexcept;
  /// Accepts no further connection, and drops the pending ones.
  void close() noexcept;
  /// Returns the errno of the last failure to accept; 0 if the last connection was accepted. Callable by any thread.
  [[nodiscard]] int trouble() const noexcept { return trouble_.load(); }
  /// Returns the number of connections that were dropped before they were authenticated. Callable by any thread.
  [[nodiscard]] std::uint64_t unauthenticated() const noexcept { return unauthenticated_.load(); }

 private:
  struct pending_connection {
    tcp_socket socket;
    handshake exchange;
    clock::time_point until;
    event_loop::registration ready{};
  };
  struct listener {
    tcp_socket socket;
    event_loop::registration ready{};
  };

  void accept(const tcp_socket& listener_socket);
  bool advance(std::list<pending_connection>::iterator connection);
  void drop(std::list<pending_connection>::iterator connection);

  event_loop& loop_;
  std::list<listener> listeners_;
  job_secret secret_;
  std::uint32_t self_;
  std::size_t max_pending_;
  judge accepts_;
  taker on_accepted_;
  std::list<pending_connection> pending_;  // in the order of arrival
  // Time at which accepting starts again; max() unless accepting is suspended because no descriptor is left.
  clock::time_point closed_until_ = clock::time_point::max();
  bool is_reported_ = false;  // set after that was logged
  std::atomic<int> trouble_{0};
  std::atomic<std::uint64_t> unauthenticated_{0};
};

}}}  // namespace muster::v0::detail
