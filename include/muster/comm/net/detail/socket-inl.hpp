#pragma once

#include <muster/comm/net/socket.hpp>

#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>

#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr int probes = 6;

inline std::string describe_code(int code) { return code == ETIMEDOUT ? "no answer in time" : std::strerror(code); }

inline descriptor open_socket(const address& remote) {
  descriptor result(::socket(remote.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!result) {
    const int code = errno;
    throw socket_error(code,
                       "cannot create a socket for " + remote.to_string() + " (" + describe_code(code) + ")" +
                           (code == EMFILE || code == ENFILE ? "; raise the limit of descriptors (ulimit -n)" : ""));
  }
  return result;
}

inline int whole_seconds(seconds span) { return static_cast<int>(std::clamp(std::ceil(span.count()), 1.0, 32767.0)); }

MUSTER_INLINE bool socket_error::timed_out() const noexcept { return code_ == ETIMEDOUT; }
MUSTER_INLINE bool socket_error::closed() const noexcept { return code_ == ECONNRESET || code_ == EPIPE || ended(); }
MUSTER_INLINE bool socket_error::ended() const noexcept { return code_ == ESHUTDOWN; }
MUSTER_INLINE std::string socket_error::describe_observation() const {
  if (ended()) return "its connection ended";
  if (closed()) return "its connection was reset";
  return timed_out() ? "its host does not answer" : what();
}

MUSTER_INLINE bool wait_for(int fd, short events, clock::time_point until) {
  for (;;) {
    const auto remaining = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    pollfd watched{fd, events, 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(std::clamp<long long>(remaining, 0, 3600000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw socket_error(errno, "poll failed (" + describe_code(errno) + ")");
    if (clock::now() >= until) return false;
  }
}

MUSTER_INLINE void tcp_socket::fail(const std::string& operation, int code) const {
  throw socket_error(code, operation + " " + peer_.to_string() + " failed (" + describe_code(code) + ")");
}

MUSTER_INLINE tcp_socket tcp_socket::listen(const address& local_address, int backlog) {
  tcp_socket result = reserve(local_address);
  result.start_listening(backlog);
  return result;
}

MUSTER_INLINE tcp_socket tcp_socket::reserve(const address& local_address) {
  tcp_socket result(open_socket(local_address), local_address);
  const int on = 1;
  const int off = 0;
  // A port whose last connections ended some seconds ago is free. A port that the system chooses must not be given to
  // another process before this one listens.
  if (local_address.port() != 0)
    result.check_listens(::setsockopt(result.file(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
  if (local_address.family() == AF_INET6)
    result.check_listens(::setsockopt(result.file(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
  result.check_listens(::bind(result.file(), local_address.get(), local_address.length()));
  return result;
}

MUSTER_INLINE void tcp_socket::start_listening(int backlog) const {
  check_listens(::listen(file(), backlog));
  // Also for a port that the system chose: this listener's connections do not block the next listener.
  const int on = 1;
  check_listens(::setsockopt(file(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
}

MUSTER_INLINE void tcp_socket::check_listens(int returned) const {
  if (returned == 0) return;
  const int code = errno;
  throw socket_error(code, "cannot listen at " + peer_.to_string() + " (" + describe_code(code) + ")");
}

MUSTER_INLINE tcp_socket tcp_socket::accept() const {
  for (;;) {
    sockaddr_storage remote{};
    socklen_t length = sizeof remote;
    descriptor accepted(::accept4(file(), reinterpret_cast<sockaddr*>(&remote), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted) return tcp_socket(std::move(accepted), address(reinterpret_cast<const sockaddr*>(&remote), length));
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    const bool hopeless = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM || errno == EBADF ||
                          errno == EINVAL || errno == ENOTSOCK;
    if (hopeless) {
      const int code = errno;
      throw socket_error(code,
                         "no connection can be accepted at " + local().to_string() + " (" + describe_code(code) + ")");
    }  // the error concerns that one connection only
  }
}

MUSTER_INLINE tcp_socket tcp_socket::start_connect(const address& remote) {
  tcp_socket result(open_socket(remote), remote);
  if (::connect(result.file(), remote.get(), remote.length()) != 0 && errno != EINPROGRESS && errno != EINTR) {
    result.fail("connecting to", errno);
  }
  return result;
}

MUSTER_INLINE void tcp_socket::finish_connect() const {
  int code = 0;
  socklen_t length = sizeof code;
  if (::getsockopt(file(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) code = errno;
  // For a port of this host without a listener, the system may choose the same port for this socket, which then
  // connects to itself.
  if (code == 0 && local() == peer_) code = ECONNREFUSED;
  if (code != 0) fail("connecting to", code);
}

MUSTER_INLINE tcp_socket tcp_socket::connect(const address& remote, clock::time_point until) {
  tcp_socket result = start_connect(remote);
  if (!wait_for(result.file(), POLLOUT, until)) result.fail("connecting to", ETIMEDOUT);
  result.finish_connect();
  return result;
}

MUSTER_INLINE tcp_socket tcp_socket::connect(std::span<const address> remotes, clock::time_point until) {
  std::string failures;
  int code = EADDRNOTAVAIL;
  for (std::size_t i = 0; i < remotes.size(); ++i) {
    const auto now = clock::now();
    const auto share = until > now ? (until - now) / static_cast<long>(remotes.size() - i) : clock::duration::zero();
    try {
      return connect(remotes[i], now + share);
    } catch (const socket_error& failed) {
      failures += (failures.empty() ? "" : "; ") + std::string(failed.what());
      code = failed.code();
    }
  }
  throw socket_error(code, failures.empty() ? "there is no address to connect to" : failures);
}

MUSTER_INLINE address tcp_socket::local() const noexcept {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (::getsockname(file(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return {};
  return {reinterpret_cast<const sockaddr*>(&own), length};
}

MUSTER_INLINE void tcp_socket::set(int level, int option_number, int value, const char* option) const {
  if (::setsockopt(file(), level, option_number, &value, sizeof value) != 0)
    fail(std::string("setting ") + option + " for", errno);
}

MUSTER_INLINE void tcp_socket::set_no_delay() const { set(IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"); }

MUSTER_INLINE void tcp_socket::set_liveness(seconds idle, seconds silent) const {
  set(SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  set(IPPROTO_TCP, TCP_KEEPIDLE, whole_seconds(idle), "TCP_KEEPIDLE");
  set(IPPROTO_TCP, TCP_KEEPINTVL, whole_seconds(silent / probes), "TCP_KEEPINTVL");
  set(IPPROTO_TCP, TCP_KEEPCNT, probes, "TCP_KEEPCNT");
}

MUSTER_INLINE void tcp_socket::set_acknowledged_within(seconds limit) const {
  const double max_value = static_cast<double>(INT_MAX);
  const int milliseconds = static_cast<int>(std::clamp(std::ceil(1000 * limit.count()), 1.0, max_value));
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds, "TCP_USER_TIMEOUT");
}

MUSTER_INLINE void tcp_socket::set_unpaced() const noexcept {
  constexpr char name[] = "reno";
  (void)::setsockopt(file(), IPPROTO_TCP, TCP_CONGESTION, name, sizeof name - 1);
}

MUSTER_INLINE std::size_t tcp_socket::read_some(std::span<const iovec> pieces) const {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // only read; the C type predates const
  message.msg_iovlen = pieces.size();
  for (;;) {
    const ssize_t got = pieces.size() == 1 ? ::recv(file(), pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT)
                                           : ::recvmsg(file(), &message, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) {
      throw socket_error(ESHUTDOWN, "reading from " + peer_.to_string() + " failed (it closed the connection)");
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) fail("reading from", errno);
  }
}

MUSTER_INLINE bool tcp_socket::has_input() const {
  char first = 0;
  for (;;) {
    const ssize_t got = ::recv(file(), &first, 1, MSG_DONTWAIT | MSG_PEEK);
    if (got > 0) return true;
    if (got == 0)
      throw socket_error(ESHUTDOWN, "reading from " + peer_.to_string() + " failed (it closed the connection)");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail("reading from", errno);
  }
}

MUSTER_INLINE std::size_t tcp_socket::try_write(std::span<const iovec> pieces, bool more) const {
  const int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // only read, as above
  message.msg_iovlen = std::min<std::size_t>(pieces.size(), IOV_MAX);
  for (;;) {
    const ssize_t sent = pieces.size() == 1 ? ::send(file(), pieces[0].iov_base, pieces[0].iov_len, flags)
                                            : ::sendmsg(file(), &message, flags);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) fail("writing to", errno);
  }
}

MUSTER_INLINE void tcp_socket::await(short events, clock::time_point until) const {
  if (wait_for(file(), events, until)) return;
  fail((events & POLLIN) != 0 ? "reading from" : "writing to", ETIMEDOUT);
}

MUSTER_INLINE void tcp_socket::shutdown_write() const noexcept { ::shutdown(file(), SHUT_WR); }

}}}  // namespace muster::v0::detail
