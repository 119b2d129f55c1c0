// TCP sockets that never block: every wait has a deadline, and every error contains the address.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>

#include <muster/comm/net/address.hpp>
#include <muster/core/descriptor.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// An error of a socket. The code is errno's. A deadline that passed is ETIMEDOUT, and an end of the stream is
/// ESHUTDOWN.
class socket_error : public error {
 public:
  socket_error(int code, const std::string& text) : error(error_kind::other, text), code_(code) {}
  [[nodiscard]] int code() const noexcept { return code_; }
  [[nodiscard]] bool timed_out() const noexcept;
  /// Returns true if the peer has closed or reset the connection.
  [[nodiscard]] bool closed() const noexcept;
  /// Returns true if the peer has closed the connection in order.
  [[nodiscard]] bool ended() const noexcept;
  /// Returns the fault for the error of a lost rank: "its connection ended", "its connection was reset", "its host does
  /// not answer".
  [[nodiscard]] std::string describe_observation() const;

 private:
  int code_;
};

/// Waits until one of `events` (POLLIN, POLLOUT) or an error occurs; returns false at the deadline. With a deadline in
/// the past it checks once. EINTR does not end the wait.
bool wait_for(int fd, short events, clock::time_point until);

/// A TCP socket: non-blocking, closed on exec, without SIGPIPE. Move-only. A thread may read while another thread
/// writes.
class tcp_socket {
 public:
  /// Length of the queue of connections to accept: a large job connects at once.
  static constexpr int most_waiting = 1024;

  tcp_socket() = default;

  /// Listens at `local_address`. Port 0 selects a free port, which `local` returns. The unspecified address of IPv6
  /// accepts IPv4 too. A port in use is a socket_error with EADDRINUSE.
  [[nodiscard]] static tcp_socket listen(const address& local_address, int backlog = most_waiting);
  /// Binds a port. No peer can connect there before `start_listening`.
  [[nodiscard]] static tcp_socket reserve(const address& local_address);
  void start_listening(int backlog = most_waiting) const;
  /// Returns the next connection; an empty socket when none is waiting. Throws socket_error for a failure in this
  /// process (no descriptor left). A peer that has already closed its connection is skipped.
  [[nodiscard]] tcp_socket accept() const;
  /// Starts to connect. The connection is complete when the socket is writable and `finish_connect` returns.
  [[nodiscard]] static tcp_socket start_connect(const address& remote);
  /// Finishes a connect when the socket is writable: throws its error, or returns with the connection established.
  void finish_connect() const;
  /// Connects by `start_connect` and `finish_connect`, and waits. Throws socket_error, also at the deadline.
  [[nodiscard]] static tcp_socket connect(const address& remote, clock::time_point until);
  /// Connects to the first of several addresses that replies. Each address gets its share of the remaining time. The
  /// error contains every address's failure.
  [[nodiscard]] static tcp_socket connect(std::span<const address> remotes, clock::time_point until);

  [[nodiscard]] int file() const noexcept { return socket_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(socket_); }
  [[nodiscard]] address local() const noexcept;
  /// Returns the remote address, also after the connection has ended; the address to listen at for a listener.
  [[nodiscard]] const address& peer() const noexcept { return peer_; }

  /// Sends small messages at once (TCP_NODELAY).
  void set_no_delay() const;
  /// Makes the system detect a silent peer host: after `idle` without data, the system sends six probes within
  /// `silent`, and closes the connection if none is acknowledged. Seconds, rounded up.
  void set_liveness(seconds idle, seconds silent) const;
  /// Also closes the connection when sent data stays unacknowledged for so long (TCP_USER_TIMEOUT). For peers that
  /// always read: a peer that advertises a full receive window for so long counts as silent too.
  void set_acknowledged_within(seconds limit) const;
  /// Disables pacing, with which BBR delays data until the path seems to be free: inside a machine pacing has no
  /// benefit and costs half of the loopback's bandwidth. A hint, by Reno, which every Linux has.
  void set_unpaced() const noexcept;

  /// Reads the available bytes into the pieces in order; returns 0 when none is available yet. Throws socket_error at
  /// the end of the stream.
  [[nodiscard]] std::size_t read_some(std::span<const iovec> pieces) const;
  [[nodiscard]] std::size_t read_some(std::span<std::byte> buffer) const {
    const iovec piece{buffer.data(), buffer.size()};
    return read_some({&piece, 1});
  }
  /// Returns true if bytes have arrived, which stay unread. Throws socket_error at the end of the stream.
  [[nodiscard]] bool has_input() const;
  /// Writes as many bytes of the pieces as possible without waiting, in order; returns 0 when none is possible. At most
  /// IOV_MAX pieces. `more`: further pieces follow at once, and the system waits for them.
  [[nodiscard]] std::size_t try_write(std::span<const iovec> pieces, bool more = false) const;

  /// Waits for one of `events` (see `wait_for`); throws socket_error with ETIMEDOUT at the deadline.
  void await(short events, clock::time_point until) const;

  /// Ends the sending direction. The peer reads the bytes that were sent, and then the end of the stream.
  void shutdown_write() const noexcept;

 private:
  explicit tcp_socket(descriptor socket, address peer = {}) noexcept : socket_(std::move(socket)), peer_(peer) {}
  [[noreturn]] void fail(const std::string& operation, int code) const;
  // Throws the error of a system call that prepares to listen, unless its result is 0.
  void check_listens(int returned) const;
  void set(int level, int option_number, int value, const char* option) const;

  descriptor socket_;
  address peer_;
};

}}}  // namespace muster::v0::detail
