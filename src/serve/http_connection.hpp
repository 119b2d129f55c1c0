// A connection of a server. It reads one request after another, and sends the reply before it reads the next request.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <muster/serve/server.hpp>
#include "model_statistics.hpp"
#include "protocol.hpp"
#include "trace.hpp"

namespace muster { inline namespace v0 { namespace serve {

/// The data that the threads of a server share.
struct server_shared {
  repository& models;
  server_options options;
  span_log spans{options.spans};
  std::atomic<bool> draining{false};
  std::atomic<std::size_t> body_bytes{0};  ///< total size of the bodies of pending requests
  model_statistics unnamed{};              ///< statistics of requests that name no served model
};

class connection;

/// The connections of a thread.
struct connection_set {
  std::set<connection*> all;
  std::function<void()> on_end;           ///< called after a connection was removed
  std::function<void()> on_wait = [] {};  ///< called when a connection starts to wait for a request
  /// Closes the connection that has waited longest for a complete header. Returns false if all connections are busy.
  bool close_oldest() const;
};

/// A reply.
struct answer {
  int status = 200;
  std::string body{};
  std::string_view type = "application/json";
  std::span<const std::byte> binary{};  ///< bytes after the body
  std::shared_ptr<const void> owner{};  ///< owner of the memory of `binary`
  std::string headers{};                ///< additional headers, each with its line end
};

/// A connection. Only the socket's thread uses the connection. Each pending operation owns the connection, which is
/// destroyed after the last operation.
///
/// States: `idle` (waits for the first byte of a request), `header` (reads the header), `body` (reads the body),
/// `predicting` (waits for the model), `writing` (sends the reply; then `idle` again, or `lingering` if the connection
/// is not kept alive) and `lingering` (discards input until the client closes). Each state has a deadline, and
/// on_timeout() handles its expiry.
class connection : public std::enable_shared_from_this<connection> {
 public:
  connection(boost::asio::ip::tcp::socket socket, server_shared& server, connection_set& set);
  ~connection();
  connection(const connection&) = delete;

  /// Starts to wait for the first request.
  void start();
  /// Closes the connection if it is between two requests. A connection without any request yet stays open, so that each
  /// accepted connection gets a reply.
  void close_if_idle();
  /// Returns the time since which the connection waits for a complete header, or nothing while it is busy or closed.
  [[nodiscard]] std::optional<clock::time_point> waits_since() const noexcept;
  void close();

 private:
  enum class phase { idle, header, body, predicting, writing, lingering };
  using request_parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void next_request();
  void wait_until(clock::time_point until, phase new_phase);
  void set_timer(clock::time_point until);
  void on_timeout();
  void read_header();
  void on_header(boost::system::error_code failed);
  void read_body();
  void on_body(boost::system::error_code failed);
  void refuse(boost::system::error_code failed);
  void dispatch();
  void predict(bool is_v1);
  void on_prediction(prediction&& result, bool is_v1);
  void finish(answer&& reply);
  void send(answer&& reply);
  void linger();
  [[nodiscard]] bool has_room();
  void release_body();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  server_shared& server_;
  connection_set& set_;
  boost::beast::flat_buffer buffer_;  // bounded, because the parser buffers a chunk's extension up to its end
  std::optional<request_parser> parser_;
  phase phase_ = phase::idle;
  bool timed_out_ = false;
  bool is_fresh_ = true;     // true until the first request arrives
  bool keep_alive_ = false;  // true if the connection stays open after this reply
  bool abandoned_ = false;   // true if the reply was sent while the model still reads the request
  request_times times_;      // times of the current request
  clock::time_point deadline_, waiting_since_;
  std::size_t counted_bytes_ = 0;        // part of the body that is included in server_.body_bytes
  std::shared_ptr<served_model> model_;  // model of the current request
  parsed_request request_;
  answer answer_;
  std::string head_;
  std::array<boost::asio::const_buffer, 3> pieces_;
};

/// Returns the text of /metrics.
[[nodiscard]] std::string write_metrics(const server_shared& server);

}}}  // namespace muster::v0::serve
