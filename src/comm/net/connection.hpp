// A connection that stands: what has come over it, and what is still to go.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "socket.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Reads and writes without waiting. One thread reads and one writes, each its own half.
class connection {
 public:
  connection() = default;
  explicit connection(tcp_socket socket) noexcept : socket_(std::move(socket)) {}

  [[nodiscard]] const tcp_socket& socket() const noexcept { return socket_; }
  explicit operator bool() const noexcept { return static_cast<bool>(socket_); }

  /// Takes a piece of what is there; false when nothing is. Throws socket_error, at the end of the stream too.
  bool read() {
    std::array<char, std::size_t{64} << 10> piece;
    const std::size_t got = socket_.read_some(std::as_writable_bytes(std::span(piece)));
    in_.append(piece.data(), got);
    return got > 0;
  }
  /// What was read and not dropped.
  [[nodiscard]] std::string_view received() const noexcept { return in_; }
  void drop(std::size_t bytes) { in_.erase(0, bytes); }

  /// What is to be sent goes behind what is in it.
  [[nodiscard]] std::string& outgoing() {
    if (unsent() == 0 || written_ >= many) {
      out_.erase(0, written_);
      written_ = 0;
    }
    return out_;
  }
  [[nodiscard]] std::size_t unsent() const noexcept { return out_.size() - written_; }
  void drop_unsent() noexcept {
    out_.clear();
    written_ = 0;
  }
  /// As much as goes now; how much that was. Throws socket_error.
  std::size_t write() {
    if (unsent() == 0) return 0;
    const iovec piece{out_.data() + written_, unsent()};
    const std::size_t sent = socket_.try_write({&piece, 1});
    written_ += sent;
    return sent;
  }

 private:
  static constexpr std::size_t many = std::size_t{4} << 20;  // so that what was written is not moved often

  tcp_socket socket_;
  std::string in_;
  std::string out_;
  std::size_t written_ = 0;  // of `out_`
};

}}}  // namespace muster::v0::detail
