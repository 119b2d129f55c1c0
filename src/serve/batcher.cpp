#include <muster/serve/batcher.hpp>

#include <exception>
#include <utility>

#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include "../core/scheduling.hpp"
#include "statistics.hpp"

namespace muster { inline namespace v0 { namespace serve {

struct batcher::unprepared_request {
  prediction_request request;
  clock::time_point arrival;
  buffer<std::byte> bytes;
  std::vector<std::span<const std::byte>> rows{};
};

batcher::batcher(any_predictor model, const batch_options& options, std::shared_ptr<model_statistics> statistics)
    : model_(std::move(model)), options_(options), statistics_(std::move(statistics)) {
  if (options.max_batch == 0 || options.queue == 0)
    throw configuration_error("no request could be predicted (max_batch or queue is 0); give at least 1");
  thread_ = std::thread([this] { run(); });
  if (model_.prepared_bytes() > 0) preparing_ = std::thread([this] { prepare_all(); });
}

batcher::~batcher() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
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
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() + unprepared_count_ >= options_.queue) return false;
    if (const std::size_t size = model_.prepared_bytes(); size > 0) {
      const std::size_t rows = request.rows.size();
      unprepared_.push_back(std::make_unique<unprepared_request>(
          unprepared_request{std::move(request), clock::now(), buffer<std::byte>(rows * size)}));
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
    changed_.wait(lock, [&] { return ending_ || !unprepared_.empty(); });
    if (unprepared_.empty()) return;
    auto next = std::move(unprepared_.front());
    unprepared_.pop_front();
    lock.unlock();
    const bool goes_on = is_prepared(*next);
    lock.lock();
    if (goes_on && next->rows.size() < next->request.rows.size()) {
      unprepared_.push_back(std::move(next));
      continue;
    }
    --unprepared_count_;
    if (!goes_on) continue;
    const std::shared_ptr<unprepared_request> owner = std::move(next);
    waiting_request ready{{owner->rows, owner->request.deadline, {}}, owner->arrival};
    ready.request.done = [owner](prediction&& made) { owner->request.done(std::move(made)); };
    enqueue(std::move(ready));
    changed_.notify_all();
  }
}

// The next row; false: the request is answered.
bool batcher::is_prepared(unprepared_request& one) {
  const std::size_t row = one.rows.size(), size = model_.prepared_bytes();
  const auto to = one.bytes.span().subspan(row * size, size);
  prediction failed{.status = prediction_status::expired, .row = row};
  try {
    if (one.request.deadline >= clock::now()) {
      model_.prepare(one.request.rows[row], to);
      one.rows.push_back(to);
      return true;
    }
  } catch (const data_error& bad) {
    failed.status = prediction_status::refused;
    failed.problem = bad.problem();
  } catch (...) {
    failed.status = prediction_status::failed;
    failed.problem = describe(std::current_exception());
  }
  one.request.done(std::move(failed));
  return false;
}

std::size_t batcher::waiting() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + unprepared_count_;
}

void batcher::run() {
  detail::shorten_slices_of_this_thread();  // clients wait for what it does
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return has_prepared_ || !queue_.empty(); });
    if (queue_.empty()) return;
    if (options_.max_delay > seconds(0)) {
      const auto until = queue_.front().arrival + std::chrono::duration_cast<clock::duration>(options_.max_delay);
      changed_.wait_until(lock, until, [&] { return ending_ || rows_waiting_ >= options_.max_batch; });
    }
    take();
    lock.unlock();
    predict();
    lock.lock();
  }
}

// Out of the queue: as many requests as fit into a batch, and before them those that came too late to be begun.
void batcher::take() {
  const auto now = clock::now();
  std::size_t rows = 0;
  while (!queue_.empty()) {
    auto& next = queue_.front().request;
    const bool late = next.deadline < now;
    if (!late && rows + next.rows.size() > options_.max_batch) break;
    if (!late) rows += next.rows.size();
    rows_waiting_ -= next.rows.size();
    (late ? expired_ : taken_).push_back(std::move(next));
    queue_.pop_front();
  }
}

void batcher::predict() {
  for (auto& late : expired_) late.done({.status = prediction_status::expired});
  expired_.clear();
  if (taken_.empty()) return;
  rows_.clear();
  for (const auto& request : taken_) rows_.insert(rows_.end(), request.rows.begin(), request.rows.end());
  const std::size_t row_bytes = model_.info().output.row_bytes();
  const auto begun = clock::now();
  try {
    // Memory of its own for each batch: answers are sent out of it while the next one is predicted.
    const auto output = std::make_shared<buffer<std::byte>>(rows_.size() * row_bytes);
    prediction_batch batch(rows_, output->span());
    model_.prepared_bytes() > 0 ? model_.predict_prepared(batch) : model_.predict(batch);
    const auto ended = clock::now();
    if (statistics_) statistics_->batch_rows.add(static_cast<double>(rows_.size()));
    std::size_t first = 0;
    for (auto& request : taken_) {
      const std::size_t count = request.rows.size();
      prediction made{.values = output->span().subspan(first * row_bytes, count * row_bytes), .owner = output};
      for (const auto& each : batch.refused()) {
        if (each.first < first || each.first >= first + count) continue;
        made = {.status = prediction_status::refused, .row = each.first - first, .problem = each.second};
        break;
      }
      made.begun = begun;
      made.ended = ended;
      first += count;
      std::exchange(request.done, nullptr)(std::move(made));
    }
  } catch (...) {
    const std::string problem = describe(std::current_exception());
    for (auto& request : taken_) {
      if (request.done) request.done({.status = prediction_status::failed, .problem = problem, .begun = begun});
    }
  }
  taken_.clear();
}

}}}  // namespace muster::v0::serve
