// All of some bytes over a socket that never blocks: for tests that speak a protocol by hand.
#pragma once

#include <poll.h>

#include <cstddef>
#include <span>

#include "comm/net/socket.hpp"

namespace test {

/// Fills `into` by the deadline, or throws socket_error, as for an end of the stream before it.
inline void read_exactly(const muster::detail::tcp_socket& from, std::span<std::byte> into,
                         muster::clock::time_point until) {
  while (!into.empty()) {
    const std::size_t got = from.read_some(into);
    into = into.subspan(got);
    if (got == 0) from.await(POLLIN, until);
  }
}

/// Writes all of it by the deadline, or throws socket_error.
inline void write_exactly(const muster::detail::tcp_socket& to, std::span<const std::byte> bytes,
                          muster::clock::time_point until) {
  while (!bytes.empty()) {
    const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};  // it is only read
    const std::size_t sent = to.try_write({&piece, 1});
    bytes = bytes.subspan(sent);
    if (sent == 0) to.await(POLLOUT, until);
  }
}

}  // namespace test
