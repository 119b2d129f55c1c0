// Reads and writes complete byte ranges over a socket that never blocks, for tests that implement a protocol
// themselves.
#pragma once

#include <poll.h>

#include <cstddef>
#include <span>

#include <muster/comm/net/socket.hpp>

namespace test {

/// Fills `into` by the deadline. Throws socket_error at the deadline, and at an end of the stream.
inline void read_exactly(const muster::detail::tcp_socket& socket, std::span<std::byte> into,
                         muster::clock::time_point until) {
  while (!into.empty()) {
    const std::size_t got = socket.read_some(into);
    into = into.subspan(got);
    if (got == 0) socket.await(POLLIN, until);
  }
}

/// Writes all bytes by the deadline. Throws socket_error at the deadline.
inline void write_exactly(const muster::detail::tcp_socket& socket, std::span<const std::byte> bytes,
                          muster::clock::time_point until) {
  while (!bytes.empty()) {
    const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};  // only read
    const std::size_t sent = socket.try_write({&piece, 1});
    bytes = bytes.subspan(sent);
    if (sent == 0) socket.await(POLLOUT, until);
  }
}

}  // namespace test
