// TCP sockets that never block: every wait has a deadline, every error names the address.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>

#include "../../core/descriptor.hpp"
#include "address.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// What a socket met. The code is errno's; a deadline that passed is ETIMEDOUT, an end of the stream is ESHUTDOWN.
class socket_error : public error {
 public:
  socket_error(int code, const std::string& text) : error(error_kind::other, text), code_(code) {}
  [[nodiscard]] int code() const noexcept { return code_; }
  [[nodiscard]] bool timed_out() const noexcept;
  /// The other side has closed or reset the connection.
  [[nodiscard]] bool closed() const noexcept;
  /// It has closed it in order.
  [[nodiscard]] bool ended() const noexcept;
  /// What was seen of the connection, as errors of ranks say it.
  [[nodiscard]] std::string as_seen() const;

 private:
  int code_;
};

/// Waits until one of `events` (POLLIN, POLLOUT) or trouble is there; false when the deadline comes first. A deadline
/// that has passed looks once. EINTR does not end the wait.
bool wait_for(int file, short events, clock::time_point until);

/// One TCP socket: non-blocking, closed on exec, deaf to SIGPIPE. Move-only; one thread reads and one may write.
class tcp_socket {
 public:
  static constexpr int most_waiting = 1024;  ///< to be accepted: a large job connects at once

  tcp_socket() = default;

  /// Waits at `where` for others to connect; port 0 takes a free one, which `local` tells. An address of all zeroes of
  /// IPv6 takes IPv4 too. A port that is taken is a socket_error of EADDRINUSE.
  [[nodiscard]] static tcp_socket listen(const address& where, int backlog = most_waiting);
  /// Takes a port; no peer can connect there before `start_listening`.
  [[nodiscard]] static tcp_socket reserve(const address& where);
  void start_listening(int backlog = most_waiting) const;
  /// The next that has connected; empty when there is none now. A socket_error says what keeps this process from
  /// accepting (no descriptor left); one that has given up already is passed over.
  [[nodiscard]] tcp_socket accept() const;
  /// Begins to connect: it is done when the socket can be written to and `finish_connect` returns.
  [[nodiscard]] static tcp_socket start_connect(const address& to);
  /// Throws what became of it; on return the connection stands.
  void finish_connect() const;
  /// Both at once, at the latest at `until`.
  [[nodiscard]] static tcp_socket connect(const address& to, clock::time_point until);
  /// The first of several addresses that answers. Each gets its share of the time that is left; the error is of all.
  [[nodiscard]] static tcp_socket connect(std::span<const address> to, clock::time_point until);

  [[nodiscard]] int file() const noexcept { return file_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(file_); }
  [[nodiscard]] address local() const noexcept;
  /// The address that it connects to; also after the connection is gone.
  [[nodiscard]] const address& peer() const noexcept { return peer_; }

  /// Small messages leave at once (TCP_NODELAY).
  void set_no_delay() const;
  /// The system tells of a peer on a silent host: when nothing came for `idle`, it is asked six times within
  /// `silent` and does not answer. Seconds, rounded up.
  void set_liveness(seconds idle, seconds silent) const;
  /// And when nothing that was sent was taken for so long (TCP_USER_TIMEOUT). For peers that always read what comes:
  /// one that has no room for a while, and says so, counts as silent too.
  void set_acknowledged_within(seconds most) const;
  /// Holds nothing back until the path seems to be free, as BBR does: inside a machine that gains nothing and takes
  /// half of the loopback's bandwidth. A hint, by Reno, which every Linux has.
  void set_unpaced() const noexcept;

  /// What is there, into the pieces in order; 0 when there is nothing yet. An end of the stream is a socket_error.
  [[nodiscard]] std::size_t read_some(std::span<const iovec> pieces) const;
  [[nodiscard]] std::size_t read_some(std::span<std::byte> into) const {
    const iovec piece{into.data(), into.size()};
    return read_some({&piece, 1});
  }
  /// As much of the pieces as goes now, in order; 0 when nothing does. At most IOV_MAX pieces. `more`: others follow at
  /// once, which the system waits for.
  [[nodiscard]] std::size_t try_write(std::span<const iovec> pieces, bool more = false) const;

  /// Waits for one of `events` (see `wait_for`); a socket_error when the deadline comes first.
  void await(short events, clock::time_point until) const;

  /// Nothing more is sent; the other side reads what was, and then the end.
  void shutdown_write() const noexcept;

 private:
  explicit tcp_socket(descriptor file, address peer = {}) noexcept : file_(std::move(file)), peer_(peer) {}
  [[noreturn]] void fail(const std::string& what, int code) const;
  void check_listens(int result) const;
  void set(int level, int name, int value, const char* what) const;

  descriptor file_;
  address peer_;
};

}}}  // namespace muster::v0::detail
