#include "socket.hpp"

#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr int probes = 6;

std::string why(int code) { return code == ETIMEDOUT ? "no answer in time" : std::strerror(code); }

descriptor open_socket(const address& of) {
  descriptor made(::socket(of.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) throw socket_error(errno, "no socket for " + of.to_string() + " can be made (" + why(errno) + ")");
  return made;
}

int whole_seconds(seconds span) { return static_cast<int>(std::clamp(std::ceil(span.count()), 1.0, 32767.0)); }

}  // namespace

bool socket_error::timed_out() const noexcept { return code_ == ETIMEDOUT; }
bool socket_error::closed() const noexcept { return code_ == ECONNRESET || code_ == EPIPE || ended(); }
bool socket_error::ended() const noexcept { return code_ == ESHUTDOWN; }
std::string socket_error::as_seen() const {
  if (ended()) return "its connection ended";
  if (closed()) return "its connection was reset";
  return timed_out() ? "its host does not answer" : what();
}

bool wait_for(int file, short events, clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    pollfd watched{file, events, 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(std::clamp<long long>(left, 0, 3600000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw socket_error(errno, "poll failed (" + why(errno) + ")");
    if (clock::now() >= until) return false;
  }
}

void tcp_socket::fail(const std::string& what, int code) const {
  throw socket_error(code, what + " " + peer_.to_string() + " failed (" + why(code) + ")");
}

tcp_socket tcp_socket::listen(const address& where, int backlog) {
  tcp_socket made = reserve(where);
  made.start_listening(backlog);
  return made;
}

tcp_socket tcp_socket::reserve(const address& where) {
  tcp_socket made(open_socket(where), where);
  const int on = 1;
  const int off = 0;
  // A port whose last connections have ended some seconds ago is free; one that the system draws must not become
  // another's before this one listens.
  if (where.port() != 0) made.check_listens(::setsockopt(made.file(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
  if (where.family() == AF_INET6)
    made.check_listens(::setsockopt(made.file(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
  made.check_listens(::bind(made.file(), where.get(), where.length()));
  return made;
}

void tcp_socket::start_listening(int backlog) const {
  check_listens(::listen(file(), backlog));
  const int on = 1;  // also for a port that was drawn: our connections do not keep the next listener from it
  check_listens(::setsockopt(file(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
}

void tcp_socket::check_listens(int result) const {
  if (result == 0) return;
  const int code = errno;
  throw socket_error(code, peer_.to_string() + " cannot be listened at (" + why(code) + ")");
}

tcp_socket tcp_socket::accept() const {
  for (;;) {
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    descriptor came(::accept4(file(), reinterpret_cast<sockaddr*>(&from), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (came) return tcp_socket(std::move(came), address(reinterpret_cast<const sockaddr*>(&from), length));
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    const bool hopeless = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM || errno == EBADF ||
                          errno == EINVAL || errno == ENOTSOCK;
    if (hopeless) {
      const int code = errno;
      throw socket_error(code, "no connection can be accepted at " + local().to_string() + " (" + why(code) + ")");
    }  // else it concerns that one connection
  }
}

tcp_socket tcp_socket::start_connect(const address& to) {
  tcp_socket made(open_socket(to), to);
  if (::connect(made.file(), to.get(), to.length()) != 0 && errno != EINPROGRESS && errno != EINTR) {
    made.fail("connecting to", errno);
  }
  return made;
}

void tcp_socket::finish_connect() const {
  int code = 0;
  socklen_t length = sizeof code;
  if (::getsockopt(file(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) code = errno;
  // A port of this host at which no socket listens may be the one that the system chose for this very socket.
  if (code == 0 && local() == peer_) code = ECONNREFUSED;
  if (code != 0) fail("connecting to", code);
}

tcp_socket tcp_socket::connect(const address& to, clock::time_point until) {
  tcp_socket made = start_connect(to);
  if (!wait_for(made.file(), POLLOUT, until)) made.fail("connecting to", ETIMEDOUT);
  made.finish_connect();
  return made;
}

tcp_socket tcp_socket::connect(std::span<const address> to, clock::time_point until) {
  std::string failures;
  int code = EADDRNOTAVAIL;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto now = clock::now();
    const auto share = until > now ? (until - now) / static_cast<long>(to.size() - i) : clock::duration::zero();
    try {
      return connect(to[i], now + share);
    } catch (const socket_error& failed) {
      failures += (failures.empty() ? "" : "; ") + std::string(failed.what());
      code = failed.code();
    }
  }
  throw socket_error(code, failures.empty() ? "there is no address to connect to" : failures);
}

address tcp_socket::local() const noexcept {
  sockaddr_storage here{};
  socklen_t length = sizeof here;
  if (::getsockname(file(), reinterpret_cast<sockaddr*>(&here), &length) != 0) return {};
  return {reinterpret_cast<const sockaddr*>(&here), length};
}

void tcp_socket::set(int level, int name, int value, const char* what) const {
  if (::setsockopt(file(), level, name, &value, sizeof value) != 0)
    fail(std::string("setting ") + what + " for", errno);
}

void tcp_socket::set_no_delay() const { set(IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"); }

void tcp_socket::set_liveness(seconds idle, seconds silent) const {
  set(SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  set(IPPROTO_TCP, TCP_KEEPIDLE, whole_seconds(idle), "TCP_KEEPIDLE");
  set(IPPROTO_TCP, TCP_KEEPINTVL, whole_seconds(silent / probes), "TCP_KEEPINTVL");
  set(IPPROTO_TCP, TCP_KEEPCNT, probes, "TCP_KEEPCNT");
}

void tcp_socket::set_acknowledged_within(seconds most) const {
  const double limit = static_cast<double>(INT_MAX);
  const int milliseconds = static_cast<int>(std::clamp(std::ceil(1000 * most.count()), 1.0, limit));
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds, "TCP_USER_TIMEOUT");
}

void tcp_socket::set_unpaced() const noexcept {
  constexpr char name[] = "reno";
  (void)::setsockopt(file(), IPPROTO_TCP, TCP_CONGESTION, name, sizeof name - 1);
}

std::size_t tcp_socket::read_some(std::span<const iovec> pieces) const {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // it is read only; the C type predates const
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

std::size_t tcp_socket::try_write(std::span<const iovec> pieces, bool more) const {
  const int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // as above
  message.msg_iovlen = std::min<std::size_t>(pieces.size(), IOV_MAX);
  for (;;) {
    const ssize_t sent = pieces.size() == 1 ? ::send(file(), pieces[0].iov_base, pieces[0].iov_len, flags)
                                            : ::sendmsg(file(), &message, flags);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) fail("writing to", errno);
  }
}

void tcp_socket::await(short events, clock::time_point until) const {
  if (wait_for(file(), events, until)) return;
  fail((events & POLLIN) != 0 ? "reading from" : "writing to", ETIMEDOUT);
}

void tcp_socket::shutdown_write() const noexcept { ::shutdown(file(), SHUT_WR); }

}}}  // namespace muster::v0::detail
