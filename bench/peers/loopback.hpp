// A connection of the loopback between the two processes of a limit.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "limit.hpp"

namespace bench {

/// Both ends of a connection over 127.0.0.1, created before the second process is forked.
struct loopback {
  int ends[2];

  loopback() {
    const int door = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    socklen_t size = sizeof at;
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    if (door < 0 || ::bind(door, address, size) != 0 || ::listen(door, 1) != 0 ||
        ::getsockname(door, address, &size) != 0)
      fail_with_errno("no listener on 127.0.0.1");
    ends[0] = ::socket(AF_INET, SOCK_STREAM, 0);
    if (ends[0] < 0 || ::connect(ends[0], address, size) != 0) fail_with_errno("connect to 127.0.0.1");
    ends[1] = ::accept(door, nullptr, nullptr);
    if (ends[1] < 0) fail_with_errno("accept");
    ::close(door);
    for (const int end : ends) {
      const int on = 1;
      ::setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
  }
};

}  // namespace bench
