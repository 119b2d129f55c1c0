// Dynamic batching: requests that arrive while a model predicts are predicted together.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/serve/predictor.hpp>

namespace muster { inline namespace v0 { namespace serve {

class model_statistics;

/// Limits of batches and of the queue.
struct batch_options {
  std::size_t max_batch = 32;  ///< largest number of rows in a batch, and in a request
  /// Longest time that the first request of a batch waits for further requests while the model is idle.
  seconds max_delay{0};
  std::size_t queue = 256;  ///< largest number of waiting requests
};

/// The result of a request. An expired request was not started before its deadline.
enum class prediction_status { done, refused, expired, failed };

/// The reply to a request.
struct prediction {
  prediction_status status = prediction_status::done;
  std::span<const std::byte> values{};  ///< rows of the output; empty unless the status is `done`
  std::shared_ptr<const void> owner{};  ///< owner of the memory of `values`
  std::size_t row = 0;                  ///< first refused row of the request
  std::string problem{};                ///< reason, if the request was refused or failed
  clock::time_point started{};  ///< start of the request's batch; time zero of the clock if the request was not started
  clock::time_point ended{};    ///< end of the request's batch; time zero of the clock if the batch did not complete
};

/// A request to predict some rows.
struct prediction_request {
  /// 1 to max_batch rows. The spans and their bytes must remain valid until `done` is called.
  std::span<const std::span<const std::byte>> rows;
  clock::time_point deadline;  ///< the request expires if its prediction has not started at this time
  /// Called once with the reply, by a thread of the batcher. Must not throw, and must not destroy the batcher.
  std::function<void(prediction&&)> done;
  bool are_files = false;  ///< true if the rows are files, which the model reads (see file_predictor)
};

/// A queue of requests, and a thread that predicts them in the order of arrival. A batch has whole requests: the oldest
/// waiting requests whose rows fit into max_batch. With max_delay 0 no request waits while the model is idle.
///
/// If the model prepares rows or takes files, a second thread prepares a row for each request in turn, or reads its
/// file, and then adds the request to the queue. A request with expensive rows delays neither the model nor other
/// requests.
class batcher {
 public:
  /// Starts the threads. `statistics` counts the rows of each batch; null: nothing is counted. Throws
  /// configuration_error if max_batch or queue is 0, or if the model both prepares rows and takes files.
  batcher(any_predictor model, const batch_options& options, std::shared_ptr<model_statistics> statistics = nullptr);
  batcher(const batcher&) = delete;
  batcher& operator=(const batcher&) = delete;
  /// Replies to all waiting requests first.
  ~batcher();

  /// Adds a request to the queue. Returns false, and does not take the request, if `queue` requests wait. Throws
  /// configuration_error for a request without rows, with more than max_batch rows, or with files that the model does
  /// not take. Thread safe.
  [[nodiscard]] bool submit(prediction_request&& request);

  /// Returns the model's description, and the options of the constructor.
  [[nodiscard]] const model_info& info() const noexcept { return model_.info(); }
  [[nodiscard]] const batch_options& options() const noexcept { return options_; }
  /// Returns the number of waiting requests. Thread safe.
  [[nodiscard]] std::size_t waiting() const;

 private:
  struct waiting_request {
    prediction_request request;
    clock::time_point arrival;
  };
  struct unprepared_request;
  void run();
  void prepare_all();
  bool prepare_next_row(unprepared_request& pending);
  void enqueue(waiting_request&& ready);
  void take_batch();
  void predict();

  any_predictor model_;
  batch_options options_;
  std::shared_ptr<model_statistics> statistics_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<waiting_request> queue_;
  std::size_t rows_waiting_ = 0;  // number of rows in queue_
  std::deque<std::unique_ptr<unprepared_request>> unprepared_;
  std::size_t unprepared_count_ = 0;  // includes the request whose row is being prepared
  bool stopping_ = false, has_prepared_ = false;
  // Used by the predicting thread alone.
  std::vector<prediction_request> batch_, expired_;
  std::vector<std::span<const std::byte>> rows_;
  std::thread thread_, preparing_;
};

}}}  // namespace muster::v0::serve
