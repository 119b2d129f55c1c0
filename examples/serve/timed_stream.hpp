// A connection with a time limit for each step.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include <muster/core/clock.hpp>
#include <muster/core/number.hpp>

#include "../command_line.hpp"

namespace served {

constexpr std::size_t room_for_headers = std::size_t{16} << 10;  // largest size of a request's headers

/// A stream whose operations are synchronous and have a time limit. A single thread at a time uses the stream.
class timed_stream {
 public:
  using error_code = boost::system::error_code;

  timed_stream() = default;
  explicit timed_stream(int socket, const boost::asio::ip::tcp& family) { stream_.socket().assign(family, socket); }

  [[nodiscard]] boost::beast::tcp_stream& stream() noexcept { return stream_; }
  [[nodiscard]] boost::beast::flat_buffer& buffer() noexcept { return buffer_; }

  /// Calls start(handler), which begins an operation of the stream, and returns the operation's error. The error is
  /// boost::beast::error::timeout if the operation takes longer than `limit`. The operation is cancelled soon after
  /// `should_cancel` returns true.
  template <class Start>
  error_code wait(
      muster::seconds limit, const Start& start, const std::function<bool()>& should_cancel = [] { return false; }) {
    error_code ended;
    stream_.expires_after(std::chrono::duration_cast<std::chrono::milliseconds>(limit));
    start([&](error_code failed, auto&&...) { ended = failed; });
    io_.restart();
    for (io_.run_for(poll_interval); !io_.stopped(); io_.run_for(poll_interval)) {
      if (should_cancel()) stream_.cancel();
    }
    return ended;
  }
  /// Closes the connection. A failed stream can be connected again.
  void close() {
    stream_.close();
    buffer_.clear();
  }

 private:
  static constexpr std::chrono::milliseconds poll_interval{100};
  boost::asio::io_context io_{1};
  boost::beast::tcp_stream stream_{io_};
  // Bounded, because the parser buffers a chunk's extension up to its end.
  boost::beast::flat_buffer buffer_{room_for_headers + 65536};
};

/// Resolves HOST:PORT or [IPv6]:PORT. Throws muster::configuration_error with a text that begins with the flag.
[[nodiscard]] inline boost::asio::ip::tcp::endpoint find_address(const std::string& flag, const std::string& address) {
  const auto colon = address.rfind(':');
  boost::system::error_code failed = boost::asio::error::invalid_argument;
  boost::asio::io_context io;
  if (colon != std::string::npos && muster::parse_number<std::uint16_t>(std::string_view(address).substr(colon + 1))) {
    std::string host = address.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    const auto found = boost::asio::ip::tcp::resolver(io).resolve(host, address.substr(colon + 1), failed);
    if (!failed && !found.empty()) return *found.begin();
  }
  examples::refuse(flag + " cannot have '" + address + "' (" +
                       (colon == std::string::npos ? "it has no port" : failed.message()) + ")",
                   "write HOST:PORT, such as 127.0.0.1:8000");
}

}  // namespace served
