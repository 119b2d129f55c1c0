#include "connection.hpp"

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

clock::time_point later(clock::time_point from, seconds by) {
  return from + std::chrono::duration_cast<clock::duration>(by);
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
constexpr std::size_t read_size = 65536;  // at most, at once

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
  forget_body();
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

// Counts what has come of the body; false if it is too much of all.
bool connection::has_room() {
  const std::size_t size = parser_->get().body().size();
  const std::size_t all = server_.body_bytes += size - counted_;
  counted_ = size;
  return all <= std::max(server_.options.max_bodies, server_.options.max_body);
}

void connection::forget_body() { server_.body_bytes -= std::exchange(counted_, 0); }

void connection::close_if_idle() {
  if (phase_ == phase::idle && !is_fresh_) close();
}

void connection::wait_until(clock::time_point until, phase now) {
  phase_ = now;
  timed_out_ = false;
  set_timer(until);
}

void connection::set_timer(clock::time_point until) {
  timer_.expires_at(until);
  timer_.async_wait([self = shared_from_this()](error_code failed) {
    // One that was set anew while this waited to be called is told by its time.
    if (!failed && self->timer_.expiry() <= clock::now()) self->on_timeout();
  });
}

void connection::on_timeout() {
  const bool is_second = std::exchange(timed_out_, true);
  if (phase_ == phase::predicting) {  // the model goes on: nothing it reads may change
    abandoned_ = true;
    keep_alive_ = false;
    return finish(error_answer(504, "request: was not predicted in time; send it again, or with fewer rows"));
  }
  if (!is_second && (phase_ == phase::header || phase_ == phase::body)) {
    error_code ignored;
    socket_.cancel(ignored);  // refuse() answers
    // A read that has had its bytes already is not cancelled, and goes on where more are there.
    return set_timer(later(clock::now(), cancel_time));
  }
  close();
}

void connection::next_request() {
  forget_body();
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
  // The parser takes any other one for none, and the body for the next request.
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
          error_answer(503, "body: there are as many of other requests as may be; send it again later"));
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
  } catch (const request_error& wrong) {
    finish(error_answer(wrong.status(), wrong.what(), wrong.status() == 405 ? "Allow: GET, POST\r\n" : ""));
  } catch (const std::exception& wrong) {
    finish(error_answer(500, wrong.what()));
  }
}

// What could not be read: the rest of the connection has no meaning.
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
  finish(error_answer(400, "request: is no HTTP/1.1 (" + failed.message() + ")"));
}

void connection::dispatch() {
  auto& request = parser_->get();
  const std::string_view target = view(request.target());
  const route way = parse_route(target.substr(0, target.find('?')));
  const bool is_post = request.method() == http::verb::post;
  if (!is_post && request.method() != http::verb::get && request.method() != http::verb::head)
    throw request_error(405, "method: is neither GET nor POST");
  if (way.what == resource::unknown) throw request_error(404, "path: nothing is there");
  const bool takes_post = way.what == resource::infer || way.what == resource::predict;
  if (takes_post != is_post) throw request_error(405, std::string("method: is not ") + (takes_post ? "POST" : "GET"));
  if (!way.model.empty()) {
    model_ = server_.models.find(way.model);
    if (!model_) throw request_error(404, "model: '" + std::string(way.model) + "' is not served here");
    if (way.version && *way.version != model_->version) {
      throw request_error(404, "version: " + std::to_string(*way.version) + " is not served (" +
                                   std::to_string(model_->version) + " is)");
    }
  }
  const bool is_ready = server_.models.is_ready() && !server_.draining;
  switch (way.what) {
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
    throw request_error(
        415, "Content-Encoding: is " + std::string(encoded) + ", and bodies are read as they are; send it plain");
  }
  const auto& body = request.body();
  const auto& info = model_->requests.info();
  const std::size_t max_rows = model_->requests.options().max_batch;
  if (is_v1) {
    request_ = parse_predict(body, info, max_rows);
  } else {
    std::size_t json_bytes = body.size();
    const auto told = request.find(boost::beast::string_view(json_bytes_header.data(), json_bytes_header.size()));
    if (told != request.end()) {
      const auto number = parse_number<std::size_t>(view(told->value()));
      if (!number) throw request_error(400, std::string(json_bytes_header) + ": is no size");
      json_bytes = *number;
    }
    request_ = parse_infer(body, json_bytes, info, max_rows);
  }
  wait_until(deadline_, phase::predicting);
  times_.submitted = clock::now();
  // The guard keeps the thread of this connection until the answer has come back to it. Both go with the answer: what
  // the thread that predicts was left with would end this connection there, where another thread uses the others.
  auto done = [self = shared_from_this(), is_v1,
               guard = asio::make_work_guard(socket_.get_executor())](prediction&& made) mutable {
    const auto executor = guard.get_executor();
    asio::post(executor, [self = std::move(self), is_v1, guard = std::move(guard), made = std::move(made)]() mutable {
      self->on_prediction(std::move(made), is_v1);
    });
  };
  if (!model_->requests.submit({request_.rows, deadline_, std::move(done)}))
    throw request_error(503, "model: its queue is full; send the request again later");
}

void connection::on_prediction(prediction&& made, bool is_v1) {
  if (abandoned_) return;  // it was answered when its time was over
  times_.begun = made.begun;
  times_.predicted = made.ended;
  switch (made.status) {
    case prediction_status::expired:
      return finish(error_answer(504, "request: was not predicted in time; send it again, or with fewer rows"));
    case prediction_status::failed:
      return finish(error_answer(500, "model: " + made.problem));
    case prediction_status::refused: {
      const std::string row = std::to_string(made.row);
      return finish(
          error_answer(400, (is_v1 ? "instances[" + row + "]: " : "inputs[0], row " + row + ": ") + made.problem));
    }
    case prediction_status::done:
      break;
  }
  const auto& info = model_->requests.info();
  answer told;
  if (is_v1) {
    told.body = write_predictions(info, made.values);
  } else {
    told.body = write_infer(model_->name, model_->version, request_, info, made.values);
    if (request_.is_binary) {
      told.type = "application/octet-stream";
      told.headers = std::string(json_bytes_header) + ": " + std::to_string(told.body.size()) + "\r\n";
      told.binary = made.values;
      told.owner = std::move(made.owner);
    }
  }
  finish(std::move(told));
}

// The answer of the request that was read last.
void connection::finish(answer&& made) {
  (model_ ? *model_->statistics : server_.unnamed).add_request(made.status, seconds_since(times_.received));
  if (server_.spans.is_open() && parser_->is_header_done()) {
    const auto& request = parser_->get();
    if (const auto caller = read_trace(request))
      server_.spans.write(*caller, times_, view(request.target()), model_ ? model_->name : "", made.status);
  }
  if (made.status == 503 && made.headers.empty()) made.headers = "Retry-After: 1\r\n";
  if (server_.draining) keep_alive_ = false;
  send(std::move(made));
}

void connection::send(answer&& made) {
  answer_ = std::move(made);
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

// A socket that is closed while bytes come in resets the connection, and the client may lose the answer.
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
