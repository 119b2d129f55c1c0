// Splits a request with many rows into blocks, which replicas answer.
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

/// A reply of the gateway or of a replica.
struct gateway_answer {
  int status = 200;
  std::string body{};
  /// Size of the JSON at the beginning of the body, before binary tensors. 0: the whole body is JSON.
  std::size_t json_bytes = 0;
};

/// A replica. All replicas serve the same models.
struct replica {
  std::string name;
  boost::asio::ip::tcp::endpoint address;
  /// Time until which the replica gets no requests, unless all replicas are down.
  std::atomic<muster::clock::rep> down_until{0};
};

/// The replicas, which all requests share.
struct replica_set {
  std::deque<replica> all;
  muster::seconds timeout;  ///< time limit for a reply
  std::size_t max_answer;   ///< largest size of a reply, in bytes

  /// Returns true if replica k is not marked down.
  [[nodiscard]] bool is_up(std::size_t k) const;
  /// Returns the first replica from k on, cyclically, that is up. Returns k if all replicas are down.
  [[nodiscard]] std::size_t up_from(std::size_t k) const;
  void mark_down(std::size_t k);
};

/// Sends a request to a replica over a persistent connection and returns the reply. Throws std::runtime_error with the
/// reason if the replica does not reply in time.
[[nodiscard]] gateway_answer send_request(timed_stream& connection, const replica& target, muster::seconds timeout,
                                          std::size_t max_answer, const std::string& head, const std::string& body);

/// A block of consecutive rows.
struct row_block {
  std::uint64_t first = 0, rows = 0;
  std::string head{}, body{};  ///< head and body of the request to a replica
  std::size_t replica = 0, tries = 0;
};

/// A request in progress. Each block is sent to a replica as soon as it is complete; the hash of its first row's index
/// selects the replica. A block that a replica fails to answer is sent to another replica. Memory holds at most two
/// blocks for each replica, and the replies.
class split_request {
 public:
  explicit split_request(replica_set& replicas);
  split_request(const split_request&) = delete;
  ~split_request();

  /// Adds the next block. Blocks are added in order. Waits while too many blocks are pending. Returns false if the
  /// request has failed and requires no further blocks.
  [[nodiscard]] bool add(row_block&& block);
  /// Waits for all replies and returns the reply to the whole request. The reply is the same as if a single replica had
  /// received all rows.
  [[nodiscard]] gateway_answer finish(std::uint64_t rows);

 private:
  void work(std::size_t k);
  void on_reply(const row_block& block, gateway_answer&& reply);
  void add_values(const row_block& block, gateway_answer&& reply);
  void retry(row_block&& block, const std::string& reason, bool is_down);
  void fail(std::uint64_t row, int status, const std::string& text);

  replica_set& replicas_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<row_block> waiting_;
  std::size_t unanswered_ = 0;
  bool stopping_ = false;
  nlohmann::ordered_json head_;  // JSON of the reply; its sizes are zero until finish()
  std::string values_;
  // Values by first row, which follow a block whose reply is missing.
  std::map<std::uint64_t, std::string> out_of_order_;
  std::map<std::uint64_t, std::uint64_t> rows_of_;
  std::uint64_t next_ = 0;  // first row that is not in values_
  std::size_t bytes_ = 0;   // total size of the values
  std::uint64_t failed_row_ = 0;
  std::optional<gateway_answer> failed_;
  std::vector<std::thread> threads_;
};

/// Returns a reply with the body {"error": text}.
[[nodiscard]] inline gateway_answer error_answer(int status, const std::string& text) {
  return {status, nlohmann::json{{"error", text}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

}  // namespace served
