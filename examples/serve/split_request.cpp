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
constexpr std::chrono::milliseconds pause{250};  // before a replica is asked for the second time
constexpr std::size_t rounds = 2;                // of all replicas, for a block

/// A replica that has the request refused says which row it is about so.
constexpr std::string_view row_named = "inputs[0], row ";

std::string range_of(const row_block& block) {
  return std::to_string(block.first) + " to " + std::to_string(block.first + block.rows - 1);
}

/// Once on the connection that is there.
gateway_answer ask_once(timed_stream& connection, const replica& to, muster::seconds timeout, std::size_t max_answer,
                        const std::string& head, const std::string& body) {
  const auto check = [&](const char* step, error_code failed) {
    if (!failed) return;
    connection.close();
    throw std::runtime_error(to.name + " " + step + ": " + failed.message());
  };
  if (!connection.stream().socket().is_open()) {
    check("cannot be connected to",
          connection.wait(connect_timeout, [&](auto done) { connection.stream().async_connect(to.address, done); }));
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
  auto& got = parser.get();
  if (!got.keep_alive()) connection.close();
  gateway_answer made{static_cast<int>(got.result_int()), std::move(got.body())};
  const auto told = got.find("Inference-Header-Content-Length");
  if (told != got.end()) {
    const auto value = told->value();
    made.json_bytes = muster::parse_number<std::size_t>({value.data(), value.size()}).value_or(0);
  }
  return made;
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

gateway_answer ask(timed_stream& connection, const replica& to, muster::seconds timeout, std::size_t max_answer,
                   const std::string& head, const std::string& body) {
  if (connection.stream().socket().is_open()) {
    const auto began = muster::clock::now();
    try {
      return ask_once(connection, to, timeout, max_answer, head, body);
    } catch (const std::runtime_error&) {
      if (muster::seconds_since(began) >= timeout.count()) throw;  // else the replica has closed it meanwhile
    }
  }
  return ask_once(connection, to, timeout, max_answer, head, body);
}

split_request::split_request(replica_set& replicas) : replicas_(replicas) {
  for (std::size_t k = 0; k < replicas_.all.size(); ++k) threads_.emplace_back([this, k] { work(k); });
}

split_request::~split_request() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (auto& each : threads_) each.join();
}

bool split_request::give(row_block&& block) {
  std::unique_lock lock(mutex_);
  // It ends in time: each block is answered, or fails the request, after so many tries.
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
  gateway_answer made{200, head_.dump()};
  made.json_bytes = made.body.size();
  made.body += values_;
  return made;
}

// Of a thread for each replica.
void split_request::work(std::size_t k) {
  timed_stream connection;
  std::unique_lock lock(mutex_);
  for (;;) {
    auto mine = waiting_.end();
    changed_.wait(lock, [&] {
      mine = std::find_if(waiting_.begin(), waiting_.end(), [&](const row_block& each) { return each.replica == k; });
      return ending_ || mine != waiting_.end();
    });
    if (mine == waiting_.end()) return;
    row_block block = std::move(*mine);
    waiting_.erase(mine);
    lock.unlock();
    std::optional<gateway_answer> made;
    std::string why;
    try {
      if (block.tries >= replicas_.all.size()) std::this_thread::sleep_for(pause);
      made = ask(connection, replicas_.all[k], replicas_.timeout, replicas_.max_answer, block.head, block.body);
    } catch (const std::exception& failed) {
      why = failed.what();
    }
    lock.lock();
    if (made && made->status < 500) {
      replicas_.all[k].down_until = 0;
      take(block, std::move(*made));
      --unanswered_;
    } else {
      const bool is_down = !made;
      if (made) why = replicas_.all[k].name + " answers " + std::to_string(made->status) + ": " + made->body;
      give_back(std::move(block), why, is_down);
    }
    changed_.notify_all();
  }
}

void split_request::take(const row_block& block, gateway_answer&& made) {
  if (made.status == 200) return take_values(block, std::move(made));
  // What this replica refuses every one does.
  std::string text = made.body;
  const auto parsed = nlohmann::json::parse(made.body, nullptr, false);
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
  fail(row, made.status, text);
}

void split_request::take_values(const row_block& block, gateway_answer&& made) {
  const auto refuse = [&](const std::string& why) {
    fail(block.first, 502, "replica: its answer to rows " + range_of(block) + " " + why);
  };
  auto head = nlohmann::ordered_json::parse(made.body.substr(0, made.json_bytes), nullptr, false);
  std::string values = made.body.substr(std::min(made.json_bytes, made.body.size()));
  try {
    auto& output = head.at("outputs").at(0);
    auto &rows = output.at("shape").at(0), &size = output.at("parameters").at("binary_data_size");
    if (head.at("outputs").size() != 1 || rows != block.rows || size != values.size())
      return refuse("is of another size");
    rows = 0;
    size = 0;
  } catch (const nlohmann::json::exception&) {
    return refuse("is no binary tensor");
  }
  if (head_.is_null()) head_ = head;
  if (head != head_) {
    return fail(block.first, 503,
                "model: replicas serve different versions of it (such as " + head_.dump() + " and " + head.dump() +
                    "); send the request again");
  }
  bytes_ += values.size();
  if (bytes_ > replicas_.max_answer) {
    return fail(block.first, 413,
                "request: its answer has more than " + std::to_string(replicas_.max_answer) +
                    " bytes; send fewer rows, or give the gateway a larger --max-body");
  }
  later_.emplace(block.first, std::move(values));
  for (auto next = later_.begin(); next != later_.end() && next->first == next_; next = later_.begin()) {
    values_ += next->second;
    next_ += rows_of_.extract(next->first).mapped();
    later_.erase(next);
  }
}

void split_request::give_back(row_block&& block, const std::string& why, bool is_down) {
  const std::size_t count = replicas_.all.size(), k = block.replica;
  if (is_down) replicas_.mark_down(k);
  if (failed_ || ++block.tries == rounds * count) {
    --unanswered_;
    return fail(block.first, 503, "replicas: none has answered rows " + range_of(block) + " (" + why + ")");
  }
  block.replica = replicas_.up_from(k + 1);
  waiting_.push_back(std::move(block));
  if (!is_down) return;
  for (auto& each : waiting_) {
    if (each.replica == k) each.replica = replicas_.up_from(k + 1);
  }
}

/// The first row that a replica refused is the one that is told, whichever came first, and before what failed
/// otherwise.
void split_request::fail(std::uint64_t row, int status, const std::string& text) {
  const auto is_refusal = [](int of) { return of >= 400 && of < 500; };
  if (failed_) {
    const bool was_refusal = is_refusal(failed_->status);
    if (was_refusal != is_refusal(status) ? was_refusal : failed_row_ <= row) return;
  }
  failed_row_ = row;
  failed_ = error_answer(status, text);
}

}  // namespace served
