// Dynamic batching: requests that wait while a model predicts are predicted together.
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

/// How requests become batches.
struct batch_options {
  std::size_t max_batch = 32;  ///< rows of a batch, and of a request
  seconds max_delay{0};        ///< how long the first request of a batch may wait for others while the model is idle
  std::size_t queue = 256;     ///< requests that may wait
};

/// How a request ended.
enum class prediction_status { done, refused, expired, failed };

/// What a request gets.
struct prediction {
  prediction_status status = prediction_status::done;
  std::span<const std::byte> values{};  ///< the rows of the output; empty unless done
  std::shared_ptr<const void> owner{};  ///< of the memory of `values`
  std::size_t row = 0;                  ///< of the request: the first that was refused
  std::string problem{};                ///< why, if it was refused or failed
  clock::time_point begun{};            ///< its batch; never, if it was not
  clock::time_point ended{};            ///< likewise
};

/// A request to predict some rows.
struct prediction_request {
  std::span<const std::span<const std::byte>> rows;  ///< 1 to max_batch; they and their bytes are read until `done`
  clock::time_point deadline;                        ///< it is not begun later than this
  /// Called once, by the thread that predicts; must not throw, and not destroy the batcher.
  std::function<void(prediction&&)> done;
};

/// A queue of requests, and a thread that predicts them in the order of their arrival. A batch is of whole requests: as
/// many of those that wait as have max_batch rows together. Without a max_delay no request waits while the model is
/// idle. Where the model prepares rows, another thread does so, a row of each request in turn: a request whose rows
/// take long does not stop the model, nor other requests.
class batcher {
 public:
  /// Throws configuration_error for options of which one is 0.
  batcher(any_predictor model, const batch_options& options, std::shared_ptr<model_statistics> statistics = nullptr);
  batcher(const batcher&) = delete;
  batcher& operator=(const batcher&) = delete;
  /// Answers what waits.
  ~batcher();

  /// False, and nothing else happens, if `queue` requests wait. Thread safe.
  [[nodiscard]] bool submit(prediction_request&& request);

  /// Of the model, and as it was given them.
  [[nodiscard]] const model_info& info() const noexcept { return model_.info(); }
  [[nodiscard]] const batch_options& options() const noexcept { return options_; }
  /// How many requests wait. Thread safe.
  [[nodiscard]] std::size_t waiting() const;

 private:
  struct waiting_request {
    prediction_request request;
    clock::time_point arrival;
  };
  struct unprepared_request;
  void run();
  void prepare_all();
  bool is_prepared(unprepared_request& one);
  void enqueue(waiting_request&& ready);
  void take();
  void predict();

  any_predictor model_;
  batch_options options_;
  std::shared_ptr<model_statistics> statistics_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<waiting_request> queue_;
  std::size_t rows_waiting_ = 0;
  std::deque<std::unique_ptr<unprepared_request>> unprepared_;
  std::size_t unprepared_count_ = 0;  // with the one whose row is prepared now
  bool ending_ = false, has_prepared_ = false;
  // Of the thread that predicts.
  std::vector<prediction_request> taken_, expired_;
  std::vector<std::span<const std::byte>> rows_;
  std::thread thread_, preparing_;
};

}}}  // namespace muster::v0::serve
