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
constexpr std::size_t max_head = std::size_t{1} << 20;  // the JSON of a request
constexpr int max_connections = 64;                     // each has a thread for each replica
constexpr int max_split = 8;                            // requests at a time, which have blocks of their rows

/// The client is not there any more.
struct connection_ended {};

struct gateway {
  gateway_options options;
  replica_set replicas;
  std::atomic<bool> draining{false};
  std::mutex mutex{};
  std::condition_variable ended{};
  int connections = 0;
  bool is_full = false;                                           // another one waits to be accepted
  std::set<std::pair<muster::clock::time_point, int>> waiting{};  // connections for a request, since when
  std::counting_semaphore<max_split> splits{max_split};
};

class client {
 public:
  client(gateway& in, int socket, const tcp& family) : gateway_(in), connection_(socket, family) {}

  void serve() {
    while (serve_one()) {
    }
    linger();
  }

 private:
  using request_parser = http::request_parser<http::buffer_body>;

  /// False: the connection ends.
  bool serve_one() {
    parser_.emplace();
    parser_->header_limit(room_for_headers);
    parser_->body_limit(std::numeric_limits<std::uint64_t>::max());  // what is held of it is bounded
    const auto began = muster::clock::now();
    bool is_evicted = false;
    const std::pair own(began, connection_.stream().socket().native_handle());
    {
      const std::lock_guard lock(gateway_.mutex);
      gateway_.waiting.insert(own);
    }
    const error_code failed = connection_.wait(
        idle_timeout,
        [&](auto done) { http::async_read_header(connection_.stream(), connection_.buffer(), *parser_, done); },
        [&] {
          is_evicted = is_evicted || makes_room(own);
          return is_evicted ||
                 (gateway_.draining && connection_.buffer().size() == 0 && muster::seconds_since(began) > 1);
        });
    {
      const std::lock_guard lock(gateway_.mutex);
      gateway_.waiting.erase(own);
    }
    if (is_evicted) throw connection_ended();
    if (failed == http::error::header_limit) {
      send(error_answer(431, "headers: have more than " + std::to_string(room_for_headers) + " bytes"), false);
      return false;
    }
    if (failed) return false;
    gateway_answer made;
    // The parser takes any other one for none, and the body for the next request.
    const bool is_framed = parser_->get().count(http::field::transfer_encoding) == 0 || parser_->chunked();
    try {
      if (!is_framed) throw refusal(400, "Transfer-Encoding: is not chunked");
      made = answer();
    } catch (const refusal& wrong) {
      made = error_answer(wrong.status, wrong.what());
    }
    const bool goes_on = is_framed && parser_->is_done() && parser_->get().keep_alive() && !gateway_.draining;
    send(made, goes_on);
    return goes_on;
  }

  // The one that has waited longest goes where another one waits to be accepted.
  bool makes_room(const std::pair<muster::clock::time_point, int>& own) {
    const std::lock_guard lock(gateway_.mutex);
    if (!gateway_.is_full || own != *gateway_.waiting.begin()) return false;
    gateway_.is_full = false;
    return true;
  }

  gateway_answer answer() {
    const auto& request = parser_->get();
    received_ = 0;
    body_began_ = muster::clock::now();
    const std::string target(request.target().data(), request.target().size());
    if (request.method() == http::verb::get && parser_->is_done()) return pass_on(target);
    if (request.method() != http::verb::post) throw refusal(405, "method: is neither GET, without a body, nor POST");
    if (!target.starts_with("/v2/models/") || !target.ends_with("/infer"))
      throw refusal(404, "path: is not that of infer of v2, which the gateway splits");
    const auto told = request.find("Inference-Header-Content-Length");
    const auto size = told == request.end()
                          ? std::nullopt
                          : muster::parse_number<std::size_t>({told->value().data(), told->value().size()});
    if (!size || *size > max_head) {
      throw refusal(400, "Inference-Header-Content-Length: is missing, or no size of at most " +
                             std::to_string(max_head) + "; the gateway splits binary tensors");
    }
    if (!request[http::field::expect].empty()) {
      const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      check(connection_.wait(step_timeout,
                             [&](auto done) { asio::async_write(connection_.stream(), asio::buffer(go_on), done); }));
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
      throw refusal(503, "request: as many as may be are split; send it again later");
    const std::unique_ptr<gateway, void (*)(gateway*)> held(&gateway_, [](gateway* of) { of->splits.release(); });
    split_request to(gateway_.replicas);
    std::uint64_t left = head.bytes;
    std::optional<std::string> carried;  // a row that was too large for the block before
    for (std::uint64_t row = 0; row < head.rows;) {
      row_block block{.first = row};
      if (head.is_strings) {
        for (; row < head.rows && block.rows < gateway_.options.max_batch; ++row, ++block.rows) {
          if (!carried) carried = read_string(row, left, room);
          if (carried->size() > room) refuse_row(row);
          if (block.body.size() + carried->size() > room) break;
          block.body += *carried;
          carried.reset();
        }
      } else {
        block.rows = std::min<std::uint64_t>({gateway_.options.max_batch, head.rows - row, room / row_bytes});
        block.body.resize(block.rows * row_bytes);
        read(block.body.data(), block.body.size(), "inputs[0]");
        left -= block.body.size();
        row += block.rows;
      }
      if (row == head.rows) end_of_body(left);
      write_head(block, target, trace, head.document);
      if (!to.give(std::move(block))) break;
    }
    return to.finish(head.rows);
  }

  std::string read_string(std::uint64_t row, std::uint64_t& left, std::size_t room) {
    const auto refuse = [&] {
      throw refusal(400, "inputs[0]: its binary data end before the end of row " + std::to_string(row));
    };
    std::string made(4, '\0');
    if (left < 4) refuse();
    read(made.data(), 4, "inputs[0]");
    left -= 4;
    std::size_t size = 0;
    for (std::size_t b = 0; b < 4; ++b) size |= std::size_t{static_cast<unsigned char>(made[b])} << (8 * b);
    if (size > left) refuse();
    made.resize(4 + size);
    if (made.size() > room) return made;  // is refused
    read(made.data() + 4, size, "inputs[0]");
    left -= size;
    return made;
  }

  void end_of_body(std::uint64_t left) {
    if (left > 0) throw refusal(400, "inputs[0]: its binary data go on behind the last row");
    char more = 0;
    if (!parser_->is_done() && read_some(&more, 1) > 0)
      throw refusal(400, "inputs[0].parameters.binary_data_size: is less than the bytes behind the JSON");
  }

  // A replica is asked for a block as a client would ask for these rows alone.
  static void write_head(row_block& block, const std::string& target, const std::string& trace, json& document) {
    document["inputs"][0]["shape"][0] = block.rows;
    document["inputs"][0]["parameters"]["binary_data_size"] = block.body.size();
    const std::string text = document.dump(-1, ' ', false, json::error_handler_t::replace);
    block.head = "POST " + target + " HTTP/1.1\r\nHost: muster\r\n" + trace +
                 "Content-Length: " + std::to_string(text.size() + block.body.size()) +
                 "\r\nInference-Header-Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text;
  }

  // By which replicas put their spans into the caller's trace (serve --spans).
  [[nodiscard]] std::string headers_of_trace() const {
    std::string made;
    for (const char* const name : {"traceparent", "tracestate", "b3", "X-B3-TraceId", "X-B3-SpanId", "X-B3-Sampled"}) {
      const auto value = parser_->get()[name];
      if (!value.empty()) made += std::string(name) + ": " + std::string(value.data(), value.size()) + "\r\n";
    }
    return made;
  }

  gateway_answer pass_on(const std::string& target) {
    auto& replicas = gateway_.replicas;
    std::string why;
    for (std::size_t tries = 0, k = 0; tries < replicas.all.size(); ++tries) {
      k = replicas.up_from(k + (tries > 0 ? 1 : 0));
      timed_stream to;
      try {
        return ask(to, replicas.all[k], replicas.timeout, replicas.max_answer,
                   "GET " + target + " HTTP/1.1\r\nHost: muster\r\n\r\n", "");
      } catch (const std::runtime_error& failed) {
        replicas.mark_down(k);
        why = failed.what();
      }
    }
    return error_answer(503, "replicas: none answers (" + why + ")");
  }

  // A body of so few bytes in so long a time holds what others could have.
  void count(std::size_t bytes) {
    constexpr double least = 128 << 10, patience = 60;  // bytes a second, after so many seconds
    received_ += bytes;
    if (muster::seconds_since(body_began_) > patience + static_cast<double>(received_) / least)
      throw refusal(408, "body: did not come in time");
  }

  static void check(error_code failed) {
    if (failed == boost::beast::error::timeout) throw refusal(408, "body: did not come in time");
    if (failed == http::error::buffer_overflow) throw refusal(400, "body: has a chunk without an end of its line");
    if (failed) throw connection_ended();
  }

  /// How many of the next `size` bytes of the body there are.
  std::size_t read_some(char* to, std::size_t size) {
    auto& body = parser_->get().body();
    body.data = to;
    body.size = size;
    while (body.size > 0 && !parser_->is_done()) {
      const std::size_t left = body.size;
      const error_code failed = connection_.wait(step_timeout, [&](auto done) {
        http::async_read(connection_.stream(), connection_.buffer(), *parser_, done);
      });
      if (failed != http::error::need_buffer) check(failed);
      count(left - body.size);
    }
    return size - body.size;
  }
  void read(char* to, std::size_t size, const std::string& field) {
    if (read_some(to, size) < size) throw refusal(400, field + ": the body ends before its bytes do");
  }

  void send(const gateway_answer& made, bool goes_on) {
    const auto reason = http::obsolete_reason(static_cast<http::status>(made.status));
    std::string head = "HTTP/1.1 " + std::to_string(made.status) + " " + std::string(reason.data(), reason.size());
    head += "\r\nContent-Length: " + std::to_string(made.body.size());
    head += made.json_bytes > 0 ? "\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: " +
                                      std::to_string(made.json_bytes)
                                : "\r\nContent-Type: application/json";
    if (made.status == 503) head += "\r\nRetry-After: 1";
    head += goes_on ? "\r\nConnection: keep-alive\r\n\r\n" : "\r\nConnection: close\r\n\r\n";
    const std::array<asio::const_buffer, 2> pieces{asio::buffer(head), asio::buffer(made.body)};
    if (connection_.wait(step_timeout, [&](auto done) { asio::async_write(connection_.stream(), pieces, done); }))
      throw connection_ended();
  }

  // A socket that is closed while bytes come in resets the connection, and the client may lose the answer.
  void linger() {
    error_code failed;
    connection_.stream().socket().shutdown(tcp::socket::shutdown_send, failed);
    std::array<char, 65536> bytes;
    for (const auto began = muster::clock::now(); !failed && muster::seconds_since(began) < linger_time.count();) {
      failed = connection_.wait(linger_time,
                                [&](auto done) { connection_.stream().async_read_some(asio::buffer(bytes), done); });
    }
  }

  gateway& gateway_;
  timed_stream connection_;
  std::optional<request_parser> parser_;
  std::size_t received_ = 0;  // of the body
  muster::clock::time_point body_began_{};
};

void serve_connection(gateway& in, int socket, const tcp& family) {
  try {
    client(in, socket, family).serve();
  } catch (const connection_ended&) {
  } catch (const std::exception& failed) {
    muster::log(muster::log_level::warning, std::string("a connection ended (") + failed.what() + ")");
  }
  const std::lock_guard lock(in.mutex);
  --in.connections;
  in.ended.notify_all();
}

}  // namespace

void run_gateway(const gateway_options& options, const std::function<void(std::uint16_t)>& listens) {
  gateway in{.options = options,
             .replicas = {.all = {}, .timeout = options.replica_timeout, .max_answer = options.max_body}};
  for (const auto& each : options.replicas) {
    auto& added = in.replicas.all.emplace_back();
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
                     "give an address of this machine");
  asio::signal_set signals(io, SIGTERM, SIGINT);
  signals.async_wait([&](error_code, int) { in.draining = true; });
  listens(acceptor.local_endpoint().port());
  const auto begin = [&](tcp::socket socket) {
    const std::lock_guard counted(in.mutex);
    ++in.connections;
    std::thread(serve_connection, std::ref(in), socket.release(), at.protocol()).detach();
  };
  for (bool accepts = false; !in.draining; io.run_one_for(std::chrono::milliseconds(100))) {
    const std::lock_guard lock(in.mutex);
    pollfd next{acceptor.native_handle(), POLLIN, 0};
    in.is_full = in.connections >= max_connections && ::poll(&next, 1, 0) > 0;
    if (accepts || in.connections >= max_connections) continue;
    accepts = true;
    acceptor.async_accept([&](error_code unaccepted, tcp::socket socket) {
      accepts = false;
      if (!unaccepted) return begin(std::move(socket));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // such as too many open files
    });
  }
  // Clients whose connections wait here would fail if the socket was closed.
  acceptor.non_blocking(true, failed);
  while (!failed) {
    tcp::socket socket = acceptor.accept(failed);
    if (!failed) begin(std::move(socket));
  }
  acceptor.close(failed);
  std::unique_lock lock(in.mutex);
  in.ended.wait(lock, [&] { return in.connections == 0; });
}

}  // namespace served
