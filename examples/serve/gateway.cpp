#include "gateway.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <limits>
#include <memory>
#include <semaphore>
#include <set>
#include <stdexcept>
#include <utility>

#include <boost/asio/signal_set.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/read.hpp>

#include <muster/core/log.hpp>
#include <muster/core/number.hpp>

#include "gateway_request.hpp"
#include "split_request.hpp"
#include "timed_stream.hpp"

namespace served {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using json = nlohmann::ordered_json;

constexpr muster::seconds idle_timeout{75}, step_timeout{30}, linger_time{10};
constexpr std::size_t max_head = std::size_t{1} << 20;  // largest size of a request's JSON
constexpr int max_connections = 64;  // each has a thread, and a split request has a thread for each replica
constexpr int max_split = 8;         // largest number of requests that are split at the same time

/// Thrown if the client has closed the connection.
struct connection_ended {};

struct gateway {
  gateway_options options;
  replica_set replicas;
  std::atomic<bool> draining{false};
  std::mutex mutex{};
  std::condition_variable ended{};
  int connections = 0;
  bool is_full = false;  // true while the limit is reached and a connection waits to be accepted
  // Connections that wait for a request, each with the time at which the wait started.
  std::set<std::pair<muster::clock::time_point, int>> waiting{};
  std::counting_semaphore<max_split> splits{max_split};
};

class client {
 public:
  client(gateway& service, int socket, const tcp& family) : gateway_(service), connection_(socket, family) {}

  void serve() {
    while (serve_one()) {
    }
    linger();
  }

 private:
  using request_parser = http::request_parser<http::buffer_body>;

  /// Serves one request. Returns false if the connection must end.
  bool serve_one() {
    parser_.emplace();
    parser_->header_limit(room_for_headers);
    // No limit, because the gateway holds only a bounded part of a body.
    parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
    const auto start = muster::clock::now();
    bool is_evicted = false;
    const std::pair entry(start, connection_.stream().socket().native_handle());
    {
      const std::lock_guard lock(gateway_.mutex);
      gateway_.waiting.insert(entry);
    }
    const error_code failed = connection_.wait(
        idle_timeout,
        [&](auto done) { http::async_read_header(connection_.stream(), connection_.buffer(), *parser_, done); },
        [&] {
          is_evicted = is_evicted || must_close(entry);
          return is_evicted ||
                 (gateway_.draining && connection_.buffer().size() == 0 && muster::seconds_since(start) > 1);
        });
    {
      const std::lock_guard lock(gateway_.mutex);
      gateway_.waiting.erase(entry);
    }
    if (is_evicted) throw connection_ended();
    if (failed == http::error::header_limit) {
      send(error_answer(431, "headers: have more than " + std::to_string(room_for_headers) + " bytes"), false);
      return false;
    }
    if (failed) return false;
    gateway_answer reply;
    // The parser ignores other encodings, and would parse the body as the next request.
    const bool is_framed = parser_->get().count(http::field::transfer_encoding) == 0 || parser_->chunked();
    try {
      if (!is_framed) throw refusal(400, "Transfer-Encoding: is not chunked");
      reply = answer();
    } catch (const refusal& refused) {
      reply = error_answer(refused.status, refused.what());
    }
    const bool keep_alive = is_framed && parser_->is_done() && parser_->get().keep_alive() && !gateway_.draining;
    send(reply, keep_alive);
    return keep_alive;
  }

  // Returns true if this connection must close for a connection that waits to be accepted: if this one has waited
  // longest.
  bool must_close(const std::pair<muster::clock::time_point, int>& entry) {
    const std::lock_guard lock(gateway_.mutex);
    if (!gateway_.is_full || entry != *gateway_.waiting.begin()) return false;
    gateway_.is_full = false;
    return true;
  }

  gateway_answer answer() {
    const auto& request = parser_->get();
    received_ = 0;
    body_began_ = muster::clock::now();
    const std::string target(request.target().data(), request.target().size());
    if (request.method() == http::verb::get && parser_->is_done()) return forward(target);
    if (request.method() != http::verb::post) throw refusal(405, "method: is neither GET, without a body, nor POST");
    if (!target.starts_with("/v2/models/") || !target.ends_with("/infer"))
      throw refusal(404, "path: is not .../infer of v2 (the gateway splits only such requests)");
    const auto header = request.find("Inference-Header-Content-Length");
    const auto size = header == request.end()
                          ? std::nullopt
                          : muster::parse_number<std::size_t>({header->value().data(), header->value().size()});
    if (!size || *size > max_head) {
      throw refusal(400, "Inference-Header-Content-Length: is missing or not a size of at most " +
                             std::to_string(max_head) + "; the gateway splits binary tensors");
    }
    if (!request[http::field::expect].empty()) {
      const std::string continue_reply = "HTTP/1.1 100 Continue\r\n\r\n";
      check(connection_.wait(step_timeout, [&](auto done) {
        asio::async_write(connection_.stream(), asio::buffer(continue_reply), done);
      }));
    }
    std::string text(*size, '\0');
    read(text.data(), text.size(), "Inference-Header-Content-Length");
    request_head head = parse_head(text);
    return split(target, head, text.size());
  }

  gateway_answer split(const std::string& target, request_head& head, std::size_t head_bytes) {
    const std::size_t room = gateway_.options.max_body - std::min(head_bytes + 64, gateway_.options.max_body);
    const std::string trace = headers_of_trace();
    const std::uint64_t row_bytes = head.is_strings ? 0 : head.bytes / head.rows;
    const auto refuse_row = [&](std::uint64_t row) {
      throw refusal(413, "inputs[0], row " + std::to_string(row) + ": is larger than a request to a replica, " +
                             std::to_string(gateway_.options.max_body) + " bytes");
    };
    if (row_bytes > room) refuse_row(0);
    if (!gateway_.splits.try_acquire_for(std::chrono::duration_cast<std::chrono::milliseconds>(step_timeout)))
      throw refusal(503, "request: the limit of split requests is reached; send it again later");
    const std::unique_ptr<gateway, void (*)(gateway*)> slot(&gateway_, [](gateway* owner) { owner->splits.release(); });
    split_request request(gateway_.replicas);
    std::uint64_t remaining = head.bytes;
    std::optional<std::string> carried;  // a row that did not fit into the previous block
    for (std::uint64_t row = 0; row < head.rows;) {
      row_block block{.first = row};
      if (head.is_strings) {
        for (; row < head.rows && block.rows < gateway_.options.max_batch; ++row, ++block.rows) {
          if (!carried) carried = read_string(row, remaining, room);
          if (carried->size() > room) refuse_row(row);
          if (block.body.size() + carried->size() > room) break;
          block.body += *carried;
          carried.reset();
        }
      } else {
        block.rows = std::min<std::uint64_t>({gateway_.options.max_batch, head.rows - row, room / row_bytes});
        block.body.resize(block.rows * row_bytes);
        read(block.body.data(), block.body.size(), "inputs[0]");
        remaining -= block.body.size();
        row += block.rows;
      }
      if (row == head.rows) end_of_body(remaining);
      write_head(block, target, trace, head.document);
      if (!request.add(std::move(block))) break;
    }
    return request.finish(head.rows);
  }

  std::string read_string(std::uint64_t row, std::uint64_t& remaining, std::size_t room) {
    const auto refuse = [&] {
      throw refusal(400, "inputs[0]: its binary data end before the end of row " + std::to_string(row));
    };
    std::string row_bytes(4, '\0');
    if (remaining < 4) refuse();
    read(row_bytes.data(), 4, "inputs[0]");
    remaining -= 4;
    std::size_t size = 0;
    for (std::size_t b = 0; b < 4; ++b) size |= std::size_t{static_cast<unsigned char>(row_bytes[b])} << (8 * b);
    if (size > remaining) refuse();
    row_bytes.resize(4 + size);
    if (row_bytes.size() > room) return row_bytes;  // the caller refuses the row
    read(row_bytes.data() + 4, size, "inputs[0]");
    remaining -= size;
    return row_bytes;
  }

  void end_of_body(std::uint64_t remaining) {
    if (remaining > 0) throw refusal(400, "inputs[0]: its binary data continue after the last row");
    char more = 0;
    if (!parser_->is_done() && read_some(&more, 1) > 0)
      throw refusal(400, "inputs[0].parameters.binary_data_size: is less than the number of bytes after the JSON");
  }

  // Writes the head of the request for a block: the request that a client would send for these rows alone.
  static void write_head(row_block& block, const std::string& target, const std::string& trace, json& document) {
    document["inputs"][0]["shape"][0] = block.rows;
    document["inputs"][0]["parameters"]["binary_data_size"] = block.body.size();
    const std::string text = document.dump(-1, ' ', false, json::error_handler_t::replace);
    block.head = "POST " + target + " HTTP/1.1\r\nHost: muster\r\n" + trace +
                 "Content-Length: " + std::to_string(text.size() + block.body.size()) +
                 "\r\nInference-Header-Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text;
  }

  // Returns the trace headers of the request. With them, replicas add their spans to the caller's trace (serve
  // --spans).
  [[nodiscard]] std::string headers_of_trace() const {
    std::string headers;
    for (const char* const name : {"traceparent", "tracestate", "b3", "X-B3-TraceId", "X-B3-SpanId", "X-B3-Sampled"}) {
      const auto value = parser_->get()[name];
      if (!value.empty()) headers += std::string(name) + ": " + std::string(value.data(), value.size()) + "\r\n";
    }
    return headers;
  }

  gateway_answer forward(const std::string& target) {
    auto& replicas = gateway_.replicas;
    std::string reason;
    for (std::size_t tries = 0, k = 0; tries < replicas.all.size(); ++tries) {
      k = replicas.up_from(k + (tries > 0 ? 1 : 0));
      timed_stream connection;
      try {
        return send_request(connection, replicas.all[k], replicas.timeout, replicas.max_answer,
                            "GET " + target + " HTTP/1.1\r\nHost: muster\r\n\r\n", "");
      } catch (const std::runtime_error& failed) {
        replicas.mark_down(k);
        reason = failed.what();
      }
    }
    return error_answer(503, "replicas: no replica answers (" + reason + ")");
  }

  // Refuses a slow body, because it occupies a slot that other requests could use.
  void count(std::size_t bytes) {
    constexpr double least = 128 << 10, patience = 60;  // bytes each second, after `patience` seconds
    received_ += bytes;
    if (muster::seconds_since(body_began_) > patience + static_cast<double>(received_) / least)
      throw refusal(408, "body: did not arrive in time");
  }

  static void check(error_code failed) {
    if (failed == boost::beast::error::timeout) throw refusal(408, "body: did not arrive in time");
    if (failed == http::error::buffer_overflow) throw refusal(400, "body: has a chunk without an end of its line");
    if (failed) throw connection_ended();
  }

  /// Reads the next `size` bytes of the body. Returns a smaller number if the body ends earlier.
  std::size_t read_some(char* output, std::size_t size) {
    auto& body = parser_->get().body();
    body.data = output;
    body.size = size;
    while (body.size > 0 && !parser_->is_done()) {
      const std::size_t remaining = body.size;
      const error_code failed = connection_.wait(step_timeout, [&](auto done) {
        http::async_read(connection_.stream(), connection_.buffer(), *parser_, done);
      });
      if (failed != http::error::need_buffer) check(failed);
      count(remaining - body.size);
    }
    return size - body.size;
  }
  void read(char* output, std::size_t size, const std::string& field) {
    if (read_some(output, size) < size) throw refusal(400, field + ": the body ends too early");
  }

  void send(const gateway_answer& reply, bool keep_alive) {
    const auto reason = http::obsolete_reason(static_cast<http::status>(reply.status));
    std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " " + std::string(reason.data(), reason.size());
    head += "\r\nContent-Length: " + std::to_string(reply.body.size());
    head += reply.json_bytes > 0 ? "\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: " +
                                       std::to_string(reply.json_bytes)
                                 : "\r\nContent-Type: application/json";
    if (reply.status == 503) head += "\r\nRetry-After: 1";
    head += keep_alive ? "\r\nConnection: keep-alive\r\n\r\n" : "\r\nConnection: close\r\n\r\n";
    const std::array<asio::const_buffer, 2> pieces{asio::buffer(head), asio::buffer(reply.body)};
    if (connection_.wait(step_timeout, [&](auto done) { asio::async_write(connection_.stream(), pieces, done); }))
      throw connection_ended();
  }

  // Discards input until the client closes. Closing a socket with unread input resets the connection, and the client
  // could lose the reply.
  void linger() {
    error_code failed;
    connection_.stream().socket().shutdown(tcp::socket::shutdown_send, failed);
    std::array<char, 65536> bytes;
    for (const auto start = muster::clock::now(); !failed && muster::seconds_since(start) < linger_time.count();) {
      failed = connection_.wait(linger_time,
                                [&](auto done) { connection_.stream().async_read_some(asio::buffer(bytes), done); });
    }
  }

  gateway& gateway_;
  timed_stream connection_;
  std::optional<request_parser> parser_;
  std::size_t received_ = 0;  // number of bytes of the body received so far
  muster::clock::time_point body_began_{};
};

void serve_connection(gateway& service, int socket, const tcp& family) {
  try {
    client(service, socket, family).serve();
  } catch (const connection_ended&) {
  } catch (const std::exception& failed) {
    muster::log(muster::log_level::warning, std::string("a connection ended (") + failed.what() + ")");
  }
  const std::lock_guard lock(service.mutex);
  --service.connections;
  service.ended.notify_all();
}

}  // namespace

void run_gateway(const gateway_options& options, const std::function<void(std::uint16_t)>& on_listening) {
  gateway service{.options = options,
                  .replicas = {.all = {}, .timeout = options.replica_timeout, .max_answer = options.max_body}};
  for (const auto& each : options.replicas) {
    auto& added = service.replicas.all.emplace_back();
    added.name = each;
    added.address = find_address("--gateway", each);
  }
  const tcp::endpoint at = find_address("--listen", options.listen);
  asio::io_context io{1};
  tcp::acceptor acceptor(io);
  error_code failed;
  acceptor.open(at.protocol(), failed);
  if (!failed) acceptor.set_option(tcp::acceptor::reuse_address(true), failed);
  if (!failed) acceptor.bind(at, failed);
  if (!failed) acceptor.listen(asio::socket_base::max_listen_connections, failed);
  if (failed)
    examples::refuse("--listen " + options.listen + " cannot be used (" + failed.message() + ")",
                     "name an address of this machine");
  asio::signal_set signals(io, SIGTERM, SIGINT);
  signals.async_wait([&](error_code, int) { service.draining = true; });
  on_listening(acceptor.local_endpoint().port());
  const auto begin = [&](tcp::socket socket) {
    const std::lock_guard counted(service.mutex);
    ++service.connections;
    std::thread(serve_connection, std::ref(service), socket.release(), at.protocol()).detach();
  };
  for (bool accepts = false; !service.draining; io.run_one_for(std::chrono::milliseconds(100))) {
    const std::lock_guard lock(service.mutex);
    pollfd next{acceptor.native_handle(), POLLIN, 0};
    service.is_full = service.connections >= max_connections && ::poll(&next, 1, 0) > 0;
    if (accepts || service.connections >= max_connections) continue;
    accepts = true;
    acceptor.async_accept([&](error_code unaccepted, tcp::socket socket) {
      accepts = false;
      if (!unaccepted) return begin(std::move(socket));
      // The error may persist, for example too many open files.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    });
  }
  // Serves the connections that are already queued, because closing the socket would reset them.
  acceptor.non_blocking(true, failed);
  while (!failed) {
    tcp::socket socket = acceptor.accept(failed);
    if (!failed) begin(std::move(socket));
  }
  acceptor.close(failed);
  std::unique_lock lock(service.mutex);
  service.ended.wait(lock, [&] { return service.connections == 0; });
}

}  // namespace served
