#include "http_connection.hpp"

#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include <muster/core/env.hpp>
#include <muster/core/number.hpp>
#include "route.hpp"

namespace muster { inline namespace v0 { namespace serve {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

clock::time_point later(clock::time_point start, seconds delay) {
  return start + std::chrono::duration_cast<clock::duration>(delay);
}

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

std::string_view reason_of(int status) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return view(reason);
}

answer error_answer(int status, std::string_view text, std::string headers = {}) {
  return {.status = status, .body = write_error(text), .headers = std::move(headers)};
}

constexpr std::string_view json_bytes_header = "Inference-Header-Content-Length";
constexpr seconds linger_time{2}, cancel_time{0.1};
constexpr std::size_t read_size = 65536;  // largest size of a read

}  // namespace

connection::connection(asio::ip::tcp::socket socket, server_shared& server, connection_set& set)
    : socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      server_(server),
      set_(set),
      buffer_(server.options.max_header + read_size) {
  set_.all.insert(this);
}

bool connection_set::close_oldest() const {
  connection* oldest = nullptr;
  for (connection* const each : all) {
    const auto since = each->waits_since();
    if (since && (oldest == nullptr || *since < *oldest->waits_since())) oldest = each;
  }
  if (oldest != nullptr) oldest->close();
  return oldest != nullptr;
}

connection::~connection() {
  release_body();
  set_.all.erase(this);
  set_.on_end();
}

void connection::start() {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  next_request();
}

std::optional<clock::time_point> connection::waits_since() const noexcept {
  if (!socket_.is_open() || (phase_ != phase::idle && phase_ != phase::header)) return std::nullopt;
  return waiting_since_;
}

// Adds the received part of the body to the server's total. Returns false if the total exceeds the limit.
bool connection::has_room() {
  const std::size_t size = parser_->get().body().size();
  const std::size_t all = server_.body_bytes += size - counted_bytes_;
  counted_bytes_ = size;
  return all <= std::max(server_.options.max_bodies, server_.options.max_body);
}

void connection::release_body() { server_.body_bytes -= std::exchange(counted_bytes_, 0); }

void connection::close_if_idle() {
  if (phase_ == phase::idle && !is_fresh_) close();
}

void connection::wait_until(clock::time_point until, phase new_phase) {
  phase_ = new_phase;
  timed_out_ = false;
  set_timer(until);
}

void connection::set_timer(clock::time_point until) {
  timer_.expires_at(until);
  timer_.async_wait([self = shared_from_this()](error_code failed) {
    // The timer may have been set again while this call was queued. Then its expiry is in the future.
    if (!failed && self->timer_.expiry() <= clock::now()) self->on_timeout();
  });
}

void connection::on_timeout() {
  const bool is_second = std::exchange(timed_out_, true);
  if (phase_ == phase::predicting) {  // the model still runs, so its input must not change
    abandoned_ = true;
    keep_alive_ = false;
    return finish(error_answer(504, "request: was not predicted in time; send it again, or with fewer rows"));
  }
  if (!is_second && (phase_ == phase::header || phase_ == phase::body)) {
    error_code ignored;
    socket_.cancel(ignored);  // refuse() sends the reply
    // A read that has already received bytes is not cancelled, and may continue with further bytes.
    return set_timer(later(clock::now(), cancel_time));
  }
  close();
}

void connection::next_request() {
  release_body();
  waiting_since_ = clock::now();
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(server_.options.max_header));
  parser_->body_limit(server_.options.max_body);
  model_.reset();
  keep_alive_ = false;
  if (buffer_.size() > 0) return read_header();
  const auto& options = server_.options;
  const seconds patience = is_fresh_          ? options.header_timeout
                           : server_.draining ? options.drain_delay
                                              : options.idle_timeout;
  wait_until(later(clock::now(), patience), phase::idle);
  set_.on_wait();
  socket_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code failed, std::size_t size) {
    if (failed) return self->close();
    self->buffer_.commit(size);
    self->read_header();
  });
}

void connection::read_header() {
  times_ = {.received = clock::now()};
  is_fresh_ = false;
  deadline_ = later(times_.received, server_.options.request_timeout);
  wait_until(std::min(deadline_, later(times_.received, server_.options.header_timeout)), phase::header);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](error_code failed, std::size_t) { self->on_header(failed); });
}

void connection::on_header(error_code failed) {
  if (failed) return refuse(failed);
  // The parser ignores other encodings, and would parse the body as the next request.
  if (parser_->get().count(http::field::transfer_encoding) > 0 && !parser_->chunked())
    return finish(error_answer(400, "Transfer-Encoding: is not chunked; send the body chunked, or with its length"));
  wait_until(deadline_, phase::body);
  if (view(parser_->get()[http::field::expect]).size() == 0 || parser_->is_done()) return read_body();
  head_ = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(head_), [self = shared_from_this()](error_code unsent, std::size_t) {
    if (unsent) return self->refuse(unsent);
    self->read_body();
  });
}

void connection::read_body() {
  if (parser_->is_done()) return on_body({});
  parser_->eager(true);
  http::async_read_some(socket_, buffer_, *parser_, [self = shared_from_this()](error_code failed, std::size_t) {
    if (!failed && self->timed_out_) return self->refuse(asio::error::operation_aborted);
    if (!failed && !self->has_room()) {
      self->keep_alive_ = false;
      return self->finish(
          error_answer(503, "body: the bodies of other requests have reached the limit; send it again later"));
    }
    if (failed) return self->on_body(failed);
    self->read_body();
  });
}

void connection::on_body(error_code failed) {
  if (failed) return refuse(failed);
  keep_alive_ = parser_->get().keep_alive();
  try {
    dispatch();
  } catch (const request_error& error) {
    finish(error_answer(error.status(), error.what(), error.status() == 405 ? "Allow: GET, POST\r\n" : ""));
  } catch (const std::exception& error) {
    finish(error_answer(500, error.what()));
  }
}

// Replies to a request that could not be read. The rest of the input cannot be interpreted, so the connection is
// closed.
void connection::refuse(error_code failed) {
  keep_alive_ = false;
  if (timed_out_ && phase_ == phase::header) return finish(error_answer(408, "headers: did not end in time"));
  if (timed_out_) return finish(error_answer(408, "body: did not end in time"));
  if (failed == http::error::header_limit) {
    return finish(
        error_answer(431, "headers: have more than " + std::to_string(server_.options.max_header) + " bytes"));
  }
  if (failed == http::error::body_limit) {
    return finish(error_answer(413, "body: has more than " + std::to_string(server_.options.max_body) + " bytes"));
  }
  const bool is_protocol = failed.category() == http::make_error_code(http::error::bad_method).category();
  if (!is_protocol || failed == http::error::end_of_stream || failed == http::error::partial_message) return close();
  finish(error_answer(400, "request: is not HTTP/1.1 (" + failed.message() + ")"));
}

void connection::dispatch() {
  auto& request = parser_->get();
  const std::string_view target = view(request.target());
  const route path = parse_route(target.substr(0, target.find('?')));
  const bool is_post = request.method() == http::verb::post;
  if (!is_post && request.method() != http::verb::get && request.method() != http::verb::head)
    throw request_error(405, "method: is neither GET nor POST");
  if (path.target == resource::unknown) throw request_error(404, "path: is unknown");
  const bool takes_post = path.target == resource::infer || path.target == resource::predict;
  if (takes_post != is_post) throw request_error(405, std::string("method: is not ") + (takes_post ? "POST" : "GET"));
  if (!path.model.empty()) {
    model_ = server_.models.find(path.model);
    if (!model_) throw request_error(404, "model: '" + std::string(path.model) + "' is not served here");
    if (path.version && *path.version != model_->version) {
      throw request_error(404, "version: " + std::to_string(*path.version) + " is not served (" +
                                   std::to_string(model_->version) + " is)");
    }
  }
  const bool is_ready = server_.models.is_ready() && !server_.draining;
  switch (path.target) {
    case resource::infer:
      return predict(false);
    case resource::predict:
      return predict(true);
    case resource::live:
      return finish({.body = "{\"live\":true}"});
    case resource::ready:
      if (!is_ready) return finish(error_answer(503, "server: is not ready", "Retry-After: 1\r\n"));
      return finish({.body = "{\"ready\":true}"});
    case resource::server:
      return finish({.body = "{\"name\":\"muster\",\"version\":\"" + library_version() +
                             "\",\"extensions\":[\"binary_tensor_data\"]}"});
    case resource::metadata:
      return finish({.body = write_metadata(model_->name, model_->version, model_->requests.info())});
    case resource::model_ready:
      return finish({.body = "{\"name\":\"" + model_->name + "\",\"ready\":true}"});
    case resource::metrics:
      return finish({.body = write_metrics(server_), .type = "text/plain; version=0.0.4"});
    case resource::unknown:
      break;
  }
}

void connection::predict(bool is_v1) {
  auto& request = parser_->get();
  const auto encoded = view(request[http::field::content_encoding]);
  if (!encoded.empty() && encoded != "identity") {
    throw request_error(415, "Content-Encoding: is " + std::string(encoded) +
                                 ", but bodies are not decoded; send the body without encoding");
  }
  const auto& body = request.body();
  const auto& info = model_->requests.info();
  const std::size_t max_rows = model_->requests.options().max_batch;
  if (is_v1) {
    request_ = parse_predict(body, info, max_rows);
  } else {
    std::size_t json_bytes = body.size();
    const auto header = request.find(boost::beast::string_view(json_bytes_header.data(), json_bytes_header.size()));
    if (header != request.end()) {
      const auto number = parse_number<std::size_t>(view(header->value()));
      if (!number) throw request_error(400, std::string(json_bytes_header) + ": is not a size");
      json_bytes = *number;
    }
    request_ = parse_infer(body, json_bytes, info, max_rows);
  }
  wait_until(deadline_, phase::predicting);
  times_.submitted = clock::now();
  // The guard keeps this connection's thread running until the reply is posted to it. The guard and `self` move
  // with the reply. Otherwise the predicting thread could hold the last reference and destroy the connection, although
  // the connection's own thread uses the set of connections.
  auto done = [self = shared_from_this(), is_v1,
               guard = asio::make_work_guard(socket_.get_executor())](prediction&& result) mutable {
    const auto executor = guard.get_executor();
    asio::post(executor, [self = std::move(self), is_v1, guard = std::move(guard),
                          result = std::move(result)]() mutable { self->on_prediction(std::move(result), is_v1); });
  };
  if (!model_->requests.submit({request_.rows, deadline_, std::move(done), request_.are_files}))
    throw request_error(503, "model: its queue is full; send the request again later");
}

void connection::on_prediction(prediction&& result, bool is_v1) {
  if (abandoned_) return;  // the reply was sent at the timeout
  times_.started = result.started;
  times_.predicted = result.ended;
  switch (result.status) {
    case prediction_status::expired:
      return finish(error_answer(504, "request: was not predicted in time; send it again, or with fewer rows"));
    case prediction_status::failed:
      return finish(error_answer(500, "model: " + result.problem));
    case prediction_status::refused: {
      const std::string row = std::to_string(result.row);
      return finish(
          error_answer(400, (is_v1 ? "instances[" + row + "]: " : "inputs[0], row " + row + ": ") + result.problem));
    }
    case prediction_status::done:
      break;
  }
  const auto& info = model_->requests.info();
  answer reply;
  if (is_v1) {
    reply.body = write_predictions(info, result.values);
  } else {
    reply.body = write_infer(model_->name, model_->version, request_, info, result.values);
    if (request_.is_binary) {
      reply.type = "application/octet-stream";
      reply.headers = std::string(json_bytes_header) + ": " + std::to_string(reply.body.size()) + "\r\n";
      reply.binary = result.values;
      reply.owner = std::move(result.owner);
    }
  }
  finish(std::move(reply));
}

// Sends the reply to the current request, after it was counted and traced.
void connection::finish(answer&& reply) {
  (model_ ? *model_->statistics : server_.unnamed).add_request(reply.status, seconds_since(times_.received));
  if (server_.spans.is_open() && parser_->is_header_done()) {
    const auto& request = parser_->get();
    if (const auto caller = read_trace(request))
      server_.spans.write(*caller, times_, view(request.target()), model_ ? model_->name : "", reply.status);
  }
  if (reply.status == 503 && reply.headers.empty()) reply.headers = "Retry-After: 1\r\n";
  if (server_.draining) keep_alive_ = false;
  send(std::move(reply));
}

void connection::send(answer&& reply) {
  answer_ = std::move(reply);
  head_ = "HTTP/1.1 " + std::to_string(answer_.status) + " ";
  head_ += reason_of(answer_.status);
  head_ += "\r\nContent-Type: ";
  head_ += answer_.type;
  head_ += "\r\nContent-Length: " + std::to_string(answer_.body.size() + answer_.binary.size()) + "\r\n";
  head_ += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  head_ += answer_.headers;
  head_ += "\r\n";
  const bool has_body = parser_->get().method() != http::verb::head;
  pieces_ = {asio::buffer(head_), asio::buffer(answer_.body, has_body ? answer_.body.size() : 0),
             asio::buffer(answer_.binary.data(), has_body ? answer_.binary.size() : 0)};
  wait_until(later(clock::now(), server_.options.request_timeout), phase::writing);
  asio::async_write(socket_, pieces_, [self = shared_from_this()](error_code failed, std::size_t) {
    if (failed) return self->close();
    if (!self->keep_alive_) return self->linger();
    self->next_request();
  });
}

// Discards input until the client closes. Closing a socket with unread input resets the connection, and the client
// could lose the reply.
void connection::linger() {
  error_code failed;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, failed);
  if (failed) return close();
  if (phase_ != phase::lingering) wait_until(later(clock::now(), linger_time), phase::lingering);
  buffer_.clear();
  socket_.async_read_some(buffer_.prepare(read_size), [self = shared_from_this()](error_code ended, std::size_t) {
    if (ended) return self->close();
    self->linger();
  });
}

void connection::close() {
  error_code ignored;
  timer_.cancel();
  socket_.close(ignored);
}

}}}  // namespace muster::v0::serve
