#include <muster/serve/batcher.hpp>

#include <exception>
#include <utility>

#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include <muster/core/scheduling.hpp>
#include "model_statistics.hpp"

namespace muster { inline namespace v0 { namespace serve {

struct batcher::unprepared_request {
  prediction_request request;
  clock::time_point arrival;
  buffer<std::byte> bytes;
  std::vector<std::span<const std::byte>> rows{};

  [[nodiscard]] std::size_t row_bytes() const { return bytes.size() / request.rows.size(); }
};

batcher::batcher(any_predictor model, const batch_options& options, std::shared_ptr<model_statistics> statistics)
    : model_(std::move(model)), options_(options), statistics_(std::move(statistics)) {
  if (options.max_batch == 0 || options.queue == 0)
    throw configuration_error("no request could be predicted (max_batch or queue is 0); set at least 1");
  const bool takes_files = info().input.takes_files;
  if (takes_files && model_.prepared_bytes() > 0)
    throw configuration_error("a model both prepares rows and takes files; let prepare() read the files");
  thread_ = std::thread([this] { run(); });
  if (takes_files || model_.prepared_bytes() > 0) preparing_ = std::thread([this] { prepare_all(); });
}

batcher::~batcher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (preparing_.joinable()) preparing_.join();
  {
    const std::lock_guard lock(mutex_);
    has_prepared_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool batcher::submit(prediction_request&& request) {
  if (request.rows.empty() || request.rows.size() > options_.max_batch)
    throw configuration_error("a request has " + std::to_string(request.rows.size()) + " rows (a batch has 1 to " +
                              std::to_string(options_.max_batch) + "); send several requests or raise max_batch");
  if (request.are_files && !info().input.takes_files)
    throw configuration_error("a request has files (the model takes none); send rows");
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() + unprepared_count_ >= options_.queue) return false;
    if (const std::size_t size = request.are_files ? info().input.row_bytes() : model_.prepared_bytes(); size > 0) {
      const std::size_t row_count = request.rows.size();
      unprepared_.push_back(std::make_unique<unprepared_request>(
          unprepared_request{std::move(request), clock::now(), buffer<std::byte>(row_count * size)}));
      ++unprepared_count_;
    } else {
      enqueue({std::move(request), clock::now()});
    }
  }
  changed_.notify_all();
  return true;
}

void batcher::enqueue(waiting_request&& ready) {
  rows_waiting_ += ready.request.rows.size();
  queue_.push_back(std::move(ready));
}

void batcher::prepare_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !unprepared_.empty(); });
    if (unprepared_.empty()) return;
    auto next = std::move(unprepared_.front());
    unprepared_.pop_front();
    lock.unlock();
    const bool success = prepare_next_row(*next);
    lock.lock();
    if (success && next->rows.size() < next->request.rows.size()) {
      unprepared_.push_back(std::move(next));
      continue;
    }
    --unprepared_count_;
    if (!success) continue;
    const std::shared_ptr<unprepared_request> owner = std::move(next);
    waiting_request ready{{owner->rows, owner->request.deadline, {}}, owner->arrival};
    ready.request.done = [owner](prediction&& reply) { owner->request.done(std::move(reply)); };
    enqueue(std::move(ready));
    changed_.notify_all();
  }
}

// Prepares the next row of a request. Returns false if the request has failed and its reply was sent.
bool batcher::prepare_next_row(unprepared_request& pending) {
  const std::size_t row = pending.rows.size(), size = pending.row_bytes();
  const auto output = pending.bytes.span().subspan(row * size, size);
  prediction failed{.status = prediction_status::expired, .row = row};
  try {
    if (pending.request.deadline >= clock::now()) {
      const auto input = pending.request.rows[row];
      pending.request.are_files ? model_.read_file(input, output) : model_.prepare(input, output);
      pending.rows.push_back(output);
      return true;
    }
  } catch (const data_error& bad) {
    failed.status = prediction_status::refused;
    failed.problem = bad.problem();
  } catch (...) {
    failed.status = prediction_status::failed;
    failed.problem = describe(std::current_exception());
  }
  pending.request.done(std::move(failed));
  return false;
}

std::size_t batcher::waiting() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + unprepared_count_;
}

void batcher::run() {
  detail::shorten_slices_of_this_thread();  // low latency: clients wait for this thread
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return has_prepared_ || !queue_.empty(); });
    if (queue_.empty()) return;
    if (options_.max_delay > seconds(0)) {
      const auto until = queue_.front().arrival + std::chrono::duration_cast<clock::duration>(options_.max_delay);
      changed_.wait_until(lock, until, [&] { return stopping_ || rows_waiting_ >= options_.max_batch; });
    }
    take_batch();
    lock.unlock();
    predict();
    lock.lock();
  }
}

// Moves requests from the queue into batch_, as many as fit. Requests whose deadline has passed are moved into
// expired_.
void batcher::take_batch() {
  const auto now = clock::now();
  std::size_t row_count = 0;
  while (!queue_.empty()) {
    auto& next = queue_.front().request;
    const bool expired = next.deadline < now;
    if (!expired && row_count + next.rows.size() > options_.max_batch) break;
    if (!expired) row_count += next.rows.size();
    rows_waiting_ -= next.rows.size();
    (expired ? expired_ : batch_).push_back(std::move(next));
    queue_.pop_front();
  }
}

void batcher::predict() {
  for (auto& expired : expired_) expired.done({.status = prediction_status::expired});
  expired_.clear();
  if (batch_.empty()) return;
  rows_.clear();
  for (const auto& request : batch_) rows_.insert(rows_.end(), request.rows.begin(), request.rows.end());
  const std::size_t row_bytes = model_.info().output.row_bytes();
  const auto started = clock::now();
  try {
    // Each batch has separate memory, because replies are sent from it while the next batch is predicted.
    const auto output = std::make_shared<buffer<std::byte>>(rows_.size() * row_bytes);
    prediction_batch batch(rows_, output->span());
    model_.prepared_bytes() > 0 ? model_.predict_prepared(batch) : model_.predict(batch);
    const auto ended = clock::now();
    if (statistics_) statistics_->batch_rows.add(static_cast<double>(rows_.size()));
    std::size_t first = 0;
    for (auto& request : batch_) {
      const std::size_t count = request.rows.size();
      prediction reply{.values = output->span().subspan(first * row_bytes, count * row_bytes), .owner = output};
      for (const auto& each : batch.refused()) {
        if (each.first < first || each.first >= first + count) continue;
        reply = {.status = prediction_status::refused, .row = each.first - first, .problem = each.second};
        break;
      }
      reply.started = started;
      reply.ended = ended;
      first += count;
      std::exchange(request.done, nullptr)(std::move(reply));
    }
  } catch (...) {
    const std::string problem = describe(std::current_exception());
    for (auto& request : batch_) {
      if (request.done) request.done({.status = prediction_status::failed, .problem = problem, .started = started});
    }
  }
  batch_.clear();
}

}}}  // namespace muster::v0::serve
