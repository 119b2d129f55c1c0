#include <muster/comm/net/socket.hpp>

#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "comm/net/exactly.hpp"

using namespace muster::detail;
using muster::deadline_after;
using muster::seconds;

namespace {

const address here = address::parse("127.0.0.1:0");

struct connection {
  connection() {
    const auto listener = tcp_socket::listen(here);
    first = tcp_socket::connect(listener.local(), deadline_after(seconds(10)));
    REQUIRE(wait_for(listener.file(), POLLIN, deadline_after(seconds(10))));
    second = listener.accept();
    REQUIRE(second);
  }
  tcp_socket first;
  tcp_socket second;
};

std::vector<std::byte> numbered(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  return bytes;
}

/// Returns the code with which a call fails; 0 when it succeeds.
template <class Call>
int code_of(Call&& call) {
  try {
    call();
  } catch (const socket_error& failed) {
    CHECK_THAT(failed.what(), contains("127.0.0.1:"));
    return failed.code();
  }
  return 0;
}

}  // namespace

TEST_CASE("a listener takes a free port, tells it, and never waits") {
  const auto listener = tcp_socket::listen(here);
  CHECK(listener.local().port() != 0);
  CHECK(listener.local().host() == "127.0.0.1");
  CHECK_FALSE(listener.accept());
  CHECK(code_of([&] { (void)tcp_socket::listen(listener.local()); }) == EADDRINUSE);
}

TEST_CASE("sockets know both ends, are closed on exec and do not block") {
  const connection both;
  CHECK(both.first.peer() == both.second.local());
  CHECK(both.first.local() == both.second.peer());
  for (const auto* first : {&both.first, &both.second}) {
    CHECK((::fcntl(first->file(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((::fcntl(first->file(), F_GETFL) & O_NONBLOCK) != 0);
    first->set_no_delay();
    first->set_liveness(seconds(5), seconds(0.5));
    std::byte room{};
    CHECK(first->read_some({&room, 1}) == 0);
  }
}

TEST_CASE("what is written in pieces is read exactly, though the system takes it in parts") {
  const connection both;
  const int small = 4096;
  for (const int which : {SO_SNDBUF, SO_RCVBUF})
    REQUIRE(::setsockopt(both.first.file(), SOL_SOCKET, which, &small, sizeof small) == 0);
  const auto sent = numbered(3000000);
  std::jthread writer([&] {
    const auto until = deadline_after(seconds(60));
    for (std::size_t at = 0; at < sent.size();) {
      std::vector<iovec> pieces;
      std::size_t behind = at;
      for (std::size_t length : {1, 0, 1000, 7, 5000}) {
        length = std::min(length, sent.size() - behind);
        pieces.push_back({const_cast<std::byte*>(sent.data() + behind), length});
        behind += length;
      }
      const std::size_t taken = both.first.try_write(pieces, at % 2 == 0);
      at += taken;
      if (taken == 0) both.first.await(POLLOUT, until);
    }
    both.first.shutdown_write();
  });
  std::vector<std::byte> got(sent.size());
  for (std::span<std::byte> left(got); !left.empty();) {
    const auto half = static_cast<std::ptrdiff_t>(std::min<std::size_t>(left.size(), 10));
    const iovec pieces[] = {{left.data(), static_cast<std::size_t>(half)},
                            {left.data() + half, left.size() - static_cast<std::size_t>(half)}};
    const std::size_t read = both.second.read_some(pieces);
    left = left.subspan(read);
    if (read == 0) both.second.await(POLLIN, deadline_after(seconds(60)));
  }
  CHECK(got == sent);
  CHECK(code_of([&] { test::read_exactly(both.second, std::span(got).first(1), deadline_after(seconds(60))); }) ==
        ESHUTDOWN);
}

TEST_CASE("every wait ends at its deadline") {
  const connection both;
  std::vector<std::byte> room(1);
  CHECK(code_of([&] { test::read_exactly(both.first, room, deadline_after(seconds(0.01))); }) == ETIMEDOUT);
  CHECK(code_of([&] { test::read_exactly(both.first, room, muster::clock::now() - std::chrono::seconds(1)); }) ==
        ETIMEDOUT);
  const auto much = numbered(100000000);  // more than the system buffers when the peer does not read
  CHECK(code_of([&] { test::write_exactly(both.first, much, deadline_after(seconds(0.05))); }) == ETIMEDOUT);
  // A listener whose queue is full neither answers nor refuses.
  const auto listener = tcp_socket::listen(here, 0);
  std::vector<tcp_socket> waiting;
  int last = 0;
  for (int i = 0; i < 5 && last == 0; ++i) {
    last = code_of([&] { waiting.push_back(tcp_socket::connect(listener.local(), deadline_after(seconds(0.05)))); });
  }
  CHECK(last == ETIMEDOUT);
}

TEST_CASE("a peer that is not there or has gone is told as such") {
  address closed;
  { closed = tcp_socket::listen(here).local(); }
  for (int i = 0; i < 200; ++i) {  // repeated, since the system may choose this very port for the connecting socket
    CHECK(code_of([&] { (void)tcp_socket::connect(closed, deadline_after(seconds(10))); }) == ECONNREFUSED);
  }
  connection both;
  both.second = tcp_socket();
  tcp_socket(std::move(both.second));
  std::vector<std::byte> room(1);
  const auto until = deadline_after(seconds(10));
  CHECK(code_of([&] { test::read_exactly(both.first, room, until); }) == ESHUTDOWN);
  int code = 0;
  while (code == 0) code = code_of([&] { test::write_exactly(both.first, room, until); });  // and no SIGPIPE
  CHECK((code == EPIPE || code == ECONNRESET));
}

TEST_CASE("the first address that answers is taken, and all are named when none does") {
  const auto listener = tcp_socket::listen(here);
  address closed;
  { closed = tcp_socket::listen(here).local(); }
  const std::vector<address> some{closed, listener.local()};
  CHECK(tcp_socket::connect(some, deadline_after(seconds(10))).peer() == listener.local());
  const std::vector<address> none{closed, closed};
  CHECK(code_of([&] { (void)tcp_socket::connect(none, deadline_after(seconds(10))); }) == ECONNREFUSED);
  CHECK_THROWS_WITH(tcp_socket::connect(none, deadline_after(seconds(10))),
                    contains("; connecting to " + closed.to_string()));
  CHECK_THROWS_AS(tcp_socket::connect(std::span<const address>(), deadline_after(seconds(10))), socket_error);
}

TEST_CASE("one listener at any address takes both families") {
  const auto listener = tcp_socket::listen(address::any(0));
  const auto port = listener.local().port();
  CHECK(tcp_socket::connect(here.with_port(port), deadline_after(seconds(10))));
  if (listener.local().family() != AF_INET6) return;
  try {
    CHECK(tcp_socket::connect(address::parse("[::1]:1").with_port(port), deadline_after(seconds(10))));
  } catch (const socket_error& failed) {
    CHECK(failed.code() == EADDRNOTAVAIL);  // a host whose loopback has no IPv6
  }
}
