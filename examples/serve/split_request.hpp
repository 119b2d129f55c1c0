// A request of many rows, in blocks that replicas answer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/ip/tcp.hpp>
#include <nlohmann/json.hpp>

#include <muster/core/clock.hpp>

namespace served {

class timed_stream;

/// What the gateway answers.
struct gateway_answer {
  int status = 200;
  std::string body{};
  std::size_t json_bytes = 0;  ///< of the body, which are before binary tensors; 0: all
};

/// Serves as any other of them.
struct replica {
  std::string name;
  boost::asio::ip::tcp::endpoint address;
  std::atomic<muster::clock::rep> down_until{0};  ///< it is asked again then, or when no other is left
};

/// What requests have in common.
struct replica_set {
  std::deque<replica> all;
  muster::seconds timeout;  ///< of an answer
  std::size_t max_answer;   ///< bytes

  [[nodiscard]] bool is_up(std::size_t k) const;
  /// The first one that is up, from k on.
  [[nodiscard]] std::size_t up_from(std::size_t k) const;
  void mark_down(std::size_t k);
};

/// Asks a replica over a connection that is kept; throws std::runtime_error (why) if it does not answer in time.
[[nodiscard]] gateway_answer ask(timed_stream& connection, const replica& to, muster::seconds timeout,
                                 std::size_t max_answer, const std::string& head, const std::string& body);

/// Consecutive rows.
struct row_block {
  std::uint64_t first = 0, rows = 0;
  std::string head{}, body{};  ///< of the request to a replica
  std::size_t replica = 0, tries = 0;
};

/// Hands blocks to replicas as they come, by the hash of the first row's index; what a replica has not answered goes to
/// another one. It holds no more than two blocks of each replica, and the answers.
class split_request {
 public:
  explicit split_request(replica_set& replicas);
  split_request(const split_request&) = delete;
  ~split_request();

  /// Blocks are given in their order. False: the request has failed, and no more are wanted.
  [[nodiscard]] bool give(row_block&& block);
  /// Waits for the answers. That of the request is that of one replica, had it had all rows.
  [[nodiscard]] gateway_answer finish(std::uint64_t rows);

 private:
  void work(std::size_t k);
  void take(const row_block& block, gateway_answer&& made);
  void take_values(const row_block& block, gateway_answer&& made);
  void give_back(row_block&& block, const std::string& why, bool is_down);
  void fail(std::uint64_t row, int status, const std::string& text);

  replica_set& replicas_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<row_block> waiting_;
  std::size_t unanswered_ = 0;
  bool ending_ = false;
  nlohmann::ordered_json head_;  // of the answer
  std::string values_;
  std::map<std::uint64_t, std::string> later_;  // values by first row, behind a block that is not answered
  std::map<std::uint64_t, std::uint64_t> rows_of_;
  std::uint64_t next_ = 0;  // the row of which values_ go on
  std::size_t bytes_ = 0;   // of all values
  std::uint64_t failed_row_ = 0;
  std::optional<gateway_answer> failed_;
  std::vector<std::thread> threads_;
};

/// {"error": text}
[[nodiscard]] inline gateway_answer error_answer(int status, const std::string& text) {
  return {status, nlohmann::json{{"error", text}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

}  // namespace served
