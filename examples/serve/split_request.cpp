#include "split_request.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include <muster/core/hash.hpp>
#include <muster/core/number.hpp>

#include "timed_stream.hpp"

namespace served {

namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr muster::seconds connect_timeout{2}, down_time{30};
constexpr std::chrono::milliseconds pause{250};  // pause before a block is sent to the same replica again
constexpr std::size_t rounds = 2;                // number of attempts at each replica for a block

/// The beginning of an error text that names the refused row.
constexpr std::string_view row_named = "inputs[0], row ";

std::string range_of(const row_block& block) {
  return std::to_string(block.first) + " to " + std::to_string(block.first + block.rows - 1);
}

/// Sends a request once. Connects first if the connection is closed.
gateway_answer send_once(timed_stream& connection, const replica& target, muster::seconds timeout,
                         std::size_t max_answer, const std::string& head, const std::string& body) {
  const auto check = [&](const char* step, error_code failed) {
    if (!failed) return;
    connection.close();
    throw std::runtime_error(target.name + " " + step + ": " + failed.message());
  };
  if (!connection.stream().socket().is_open()) {
    check("cannot be connected to", connection.wait(connect_timeout, [&](auto done) {
      connection.stream().async_connect(target.address, done);
    }));
    error_code ignored;
    connection.stream().socket().set_option(boost::asio::ip::tcp::no_delay(true), ignored);
  }
  const std::array<boost::asio::const_buffer, 2> pieces{boost::asio::buffer(head), boost::asio::buffer(body)};
  check("does not take a request",
        connection.wait(timeout, [&](auto done) { boost::asio::async_write(connection.stream(), pieces, done); }));
  http::response_parser<http::string_body> parser;
  parser.body_limit(max_answer + (std::size_t{1} << 20));
  check("does not answer", connection.wait(timeout, [&](auto done) {
    http::async_read(connection.stream(), connection.buffer(), parser, done);
  }));
  auto& response = parser.get();
  if (!response.keep_alive()) connection.close();
  gateway_answer reply{static_cast<int>(response.result_int()), std::move(response.body())};
  const auto header = response.find("Inference-Header-Content-Length");
  if (header != response.end()) {
    const auto value = header->value();
    reply.json_bytes = muster::parse_number<std::size_t>({value.data(), value.size()}).value_or(0);
  }
  return reply;
}

}  // namespace

bool replica_set::is_up(std::size_t k) const {
  return all[k].down_until.load() < muster::clock::now().time_since_epoch().count();
}

std::size_t replica_set::up_from(std::size_t k) const {
  for (std::size_t step = 0; step < all.size(); ++step) {
    if (is_up((k + step) % all.size())) return (k + step) % all.size();
  }
  return k % all.size();
}

void replica_set::mark_down(std::size_t k) {
  all[k].down_until = muster::deadline_after(down_time).time_since_epoch().count();
}

gateway_answer send_request(timed_stream& connection, const replica& target, muster::seconds timeout,
                            std::size_t max_answer, const std::string& head, const std::string& body) {
  if (connection.stream().socket().is_open()) {
    const auto start = muster::clock::now();
    try {
      return send_once(connection, target, timeout, max_answer, head, body);
    } catch (const std::runtime_error&) {
      // An early failure means that the replica had closed the idle connection.
      if (muster::seconds_since(start) >= timeout.count()) throw;
    }
  }
  return send_once(connection, target, timeout, max_answer, head, body);
}

split_request::split_request(replica_set& replicas) : replicas_(replicas) {
  for (std::size_t k = 0; k < replicas_.all.size(); ++k) threads_.emplace_back([this, k] { work(k); });
}

split_request::~split_request() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& each : threads_) each.join();
}

bool split_request::add(row_block&& block) {
  std::unique_lock lock(mutex_);
  // This wait is bounded, because each block is answered, or fails the request, after a limited number of attempts.
  changed_.wait(lock, [&] { return failed_ || unanswered_ < 2 * replicas_.all.size(); });
  if (failed_) return false;
  block.replica = replicas_.up_from(muster::mix(block.first) % replicas_.all.size());
  rows_of_.emplace(block.first, block.rows);
  waiting_.push_back(std::move(block));
  ++unanswered_;
  lock.unlock();
  changed_.notify_all();
  return true;
}

gateway_answer split_request::finish(std::uint64_t rows) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return unanswered_ == 0; });
  if (failed_) return std::move(*failed_);
  head_["outputs"][0]["shape"][0] = rows;
  head_["outputs"][0]["parameters"]["binary_data_size"] = values_.size();
  gateway_answer reply{200, head_.dump()};
  reply.json_bytes = reply.body.size();
  reply.body += values_;
  return reply;
}

// Runs in a thread for each replica.
void split_request::work(std::size_t k) {
  timed_stream connection;
  std::unique_lock lock(mutex_);
  for (;;) {
    auto position = waiting_.end();
    changed_.wait(lock, [&] {
      position =
          std::find_if(waiting_.begin(), waiting_.end(), [&](const row_block& each) { return each.replica == k; });
      return stopping_ || position != waiting_.end();
    });
    if (position == waiting_.end()) return;
    row_block block = std::move(*position);
    waiting_.erase(position);
    lock.unlock();
    std::optional<gateway_answer> reply;
    std::string reason;
    try {
      if (block.tries >= replicas_.all.size()) std::this_thread::sleep_for(pause);
      reply =
          send_request(connection, replicas_.all[k], replicas_.timeout, replicas_.max_answer, block.head, block.body);
    } catch (const std::exception& failed) {
      reason = failed.what();
    }
    lock.lock();
    if (reply && reply->status < 500) {
      replicas_.all[k].down_until = 0;
      on_reply(block, std::move(*reply));
      --unanswered_;
    } else {
      const bool is_down = !reply;
      if (reply) reason = replicas_.all[k].name + " answers " + std::to_string(reply->status) + ": " + reply->body;
      retry(std::move(block), reason, is_down);
    }
    changed_.notify_all();
  }
}

void split_request::on_reply(const row_block& block, gateway_answer&& reply) {
  if (reply.status == 200) return add_values(block, std::move(reply));
  // A refusal is final, because all replicas refuse the same requests.
  std::string text = reply.body;
  const auto parsed = nlohmann::json::parse(reply.body, nullptr, false);
  if (parsed.is_object() && parsed.contains("error") && parsed["error"].is_string()) text = parsed["error"];
  std::uint64_t row = block.first;
  if (text.starts_with(row_named)) {
    const auto end = text.find(':');
    const auto number =
        muster::parse_number<std::uint64_t>(std::string_view(text).substr(0, end).substr(row_named.size()));
    if (number && end != std::string::npos) {
      row += *number;
      text = std::string(row_named) + std::to_string(row) + text.substr(end);
    }
  }
  fail(row, reply.status, text);
}

void split_request::add_values(const row_block& block, gateway_answer&& reply) {
  const auto refuse = [&](const std::string& reason) {
    fail(block.first, 502, "replica: the reply for rows " + range_of(block) + " " + reason);
  };
  auto head = nlohmann::ordered_json::parse(reply.body.substr(0, reply.json_bytes), nullptr, false);
  std::string values = reply.body.substr(std::min(reply.json_bytes, reply.body.size()));
  try {
    auto& output = head.at("outputs").at(0);
    auto &rows = output.at("shape").at(0), &size = output.at("parameters").at("binary_data_size");
    if (head.at("outputs").size() != 1 || rows != block.rows || size != values.size())
      return refuse("has a different size");
    rows = 0;
    size = 0;
  } catch (const nlohmann::json::exception&) {
    return refuse("is not a binary tensor");
  }
  if (head_.is_null()) head_ = head;
  if (head != head_) {
    return fail(block.first, 503,
                "model: replicas serve different versions (such as " + head_.dump() + " and " + head.dump() +
                    "); send the request again");
  }
  bytes_ += values.size();
  if (bytes_ > replicas_.max_answer) {
    return fail(block.first, 413,
                "request: its answer has more than " + std::to_string(replicas_.max_answer) +
                    " bytes; send fewer rows, or give the gateway a larger --max-body");
  }
  out_of_order_.emplace(block.first, std::move(values));
  for (auto next = out_of_order_.begin(); next != out_of_order_.end() && next->first == next_;
       next = out_of_order_.begin()) {
    values_ += next->second;
    next_ += rows_of_.extract(next->first).mapped();
    out_of_order_.erase(next);
  }
}

void split_request::retry(row_block&& block, const std::string& reason, bool is_down) {
  const std::size_t count = replicas_.all.size(), k = block.replica;
  if (is_down) replicas_.mark_down(k);
  if (failed_ || ++block.tries == rounds * count) {
    --unanswered_;
    return fail(block.first, 503, "replicas: no replica has answered rows " + range_of(block) + " (" + reason + ")");
  }
  block.replica = replicas_.up_from(k + 1);
  waiting_.push_back(std::move(block));
  if (!is_down) return;
  for (auto& each : waiting_) {
    if (each.replica == k) each.replica = replicas_.up_from(k + 1);
  }
}

/// Records a failure. The reported failure is the refusal of the lowest row, independently of the order of arrival.
/// Refusals have priority over other failures.
void split_request::fail(std::uint64_t row, int status, const std::string& text) {
  const auto is_refusal = [](int code) { return code >= 400 && code < 500; };
  if (failed_) {
    const bool was_refusal = is_refusal(failed_->status);
    if (was_refusal != is_refusal(status) ? was_refusal : failed_row_ <= row) return;
  }
  failed_row_ = row;
  failed_ = error_answer(status, text);
}

}  // namespace served
