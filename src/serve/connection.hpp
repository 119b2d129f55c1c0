// A connection of a server: one request after another, each read, answered and forgotten.
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
#include "protocol.hpp"
#include "statistics.hpp"
#include "trace.hpp"

namespace muster { inline namespace v0 { namespace serve {

/// What the threads of a server share.
struct server_shared {
  repository& models;
  server_options options;
  span_log spans{options.spans};
  std::atomic<bool> draining{false};
  std::atomic<std::size_t> body_bytes{0};  ///< of all requests that are not answered yet
  model_statistics unnamed{};              ///< of requests that name no model that is there
};

class connection;

/// The connections of one thread.
struct connection_set {
  std::set<connection*> all;
  std::function<void()> on_end;           ///< called after one has left
  std::function<void()> on_wait = [] {};  ///< called when one begins to wait for a request
  /// Closes the one that has waited longest for a whole header; false where all are busy.
  bool close_oldest() const;
};

/// What is sent.
struct answer {
  int status = 200;
  std::string body{};
  std::string_view type = "application/json";
  std::span<const std::byte> binary{};  ///< behind the body
  std::shared_ptr<const void> owner{};  ///< of `binary`
  std::string headers{};                ///< further ones, each with its end of line
};

/// Used by one thread, that of its socket. It lives while an operation of it does.
class connection : public std::enable_shared_from_this<connection> {
 public:
  connection(boost::asio::ip::tcp::socket socket, server_shared& server, connection_set& set);
  ~connection();
  connection(const connection&) = delete;

  /// Begins to wait for the first request.
  void start();
  /// Closes it between two requests. One that has not had any stays: what was accepted is answered.
  void close_if_idle();
  /// Since when it waits for a whole header; nothing while it is busy, or closed.
  [[nodiscard]] std::optional<clock::time_point> waits_since() const noexcept;
  void close();

 private:
  enum class phase { idle, header, body, predicting, writing, lingering };
  using request_parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void next_request();
  void wait_until(clock::time_point until, phase now);
  void set_timer(clock::time_point until);
  void on_timeout();
  void read_header();
  void on_header(boost::system::error_code failed);
  void read_body();
  void on_body(boost::system::error_code failed);
  void refuse(boost::system::error_code failed);
  void dispatch();
  void predict(bool is_v1);
  void on_prediction(prediction&& made, bool is_v1);
  void finish(answer&& made);
  void send(answer&& made);
  void linger();
  [[nodiscard]] bool has_room();
  void forget_body();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  server_shared& server_;
  connection_set& set_;
  boost::beast::flat_buffer buffer_;  // bounded: the parser waits for the end of a chunk's extension in it
  std::optional<request_parser> parser_;
  phase phase_ = phase::idle;
  bool timed_out_ = false;
  bool is_fresh_ = true;     // no request came yet
  bool keep_alive_ = false;  // after this answer
  bool abandoned_ = false;   // a model still reads the request, which was answered
  request_times times_;      // of the request
  clock::time_point deadline_, waiting_since_;
  std::size_t counted_ = 0;              // bytes of the body, among those of all
  std::shared_ptr<served_model> model_;  // of the request
  parsed_request request_;
  answer answer_;
  std::string head_;
  std::array<boost::asio::const_buffer, 3> pieces_;
};

/// What /metrics tells.
[[nodiscard]] std::string write_metrics(const server_shared& server);

}}}  // namespace muster::v0::serve
