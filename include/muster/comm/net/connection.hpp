// An established connection with its received bytes and its bytes to send.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <muster/comm/net/socket.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Reads and writes without waiting. A thread may read while another thread writes, because the two directions share no
/// state.
class connection {
 public:
  connection() = default;
  explicit connection(tcp_socket socket) noexcept : socket_(std::move(socket)) {}

  [[nodiscard]] const tcp_socket& socket() const noexcept { return socket_; }
  explicit operator bool() const noexcept { return static_cast<bool>(socket_); }

  /// Reads one piece of the available bytes; returns false when none is available. Throws socket_error, also at the end
  /// of the stream.
  bool read() {
    std::array<char, std::size_t{64} << 10> piece;
    const std::size_t got = socket_.read_some(std::as_writable_bytes(std::span(piece)));
    in_.append(piece.data(), got);
    return got > 0;
  }
  /// Returns the bytes that were read and not dropped.
  [[nodiscard]] std::string_view received() const noexcept { return in_; }
  void drop(std::size_t bytes) { in_.erase(0, bytes); }

  /// Returns the buffer of outgoing bytes; append the bytes to send.
  [[nodiscard]] std::string& outgoing() {
    if (unsent() == 0 || written_ >= compaction_bytes) {
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
  /// Writes as many bytes as possible without waiting, and returns their number. Throws socket_error.
  std::size_t write() {
    if (unsent() == 0) return 0;
    const iovec piece{out_.data() + written_, unsent()};
    const std::size_t sent = socket_.try_write({&piece, 1});
    written_ += sent;
    return sent;
  }

 private:
  static constexpr std::size_t compaction_bytes = std::size_t{4} << 20;  // limits how often written bytes are moved

  tcp_socket socket_;
  std::string in_;
  std::string out_;
  std::size_t written_ = 0;  // number of written bytes of `out_`
};

}}}  // namespace muster::v0::detail
