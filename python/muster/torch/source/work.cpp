#include "work.hpp"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include <ATen/core/ivalue.h>

#include <muster/core/error.hpp>

namespace muster::torch_backend {
namespace {

constexpr muster::seconds slice{0.01};
constexpr muster::seconds no_wait{0};

/// The process's thread that advances outstanding works, so that they end and their futures are set although nobody
/// waits for them. It sleeps while there is none.
class progress_thread {
 public:
  void add(open_work& work) {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    // Shares the work with the thread until it has ended.
    works_.push_back(c10::intrusive_ptr<open_work>::unsafe_reclaim_from_nonowning(&work));
    changed_.notify_one();
  }
  // Ends the thread, and the works that are outstanding: the interpreter ends, and with it their tensors.
  void stop() noexcept {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
    std::move(works_.begin(), works_.end(), std::back_inserter(open_));
    works_.clear();
    if (open_.empty()) return;
    std::fprintf(stderr,
                 "muster: %zu calls of torch.distributed were outstanding when the interpreter ended; wait for them\n",
                 open_.size());
    for (const auto& work : open_) {
      work->abort();
      while (!work->advance(slice)) {
      }
    }
    open_.clear();
  }

 private:
  void run(const std::stop_token& stop) {
    auto since = muster::clock::now();
    while (!stop.stop_requested()) {
      {
        std::unique_lock lock(mutex_);
        if (open_.empty()) {
          changed_.wait(lock, stop, [this] { return !works_.empty(); });
          since = muster::clock::now();
        }
        std::move(works_.begin(), works_.end(), std::back_inserter(open_));
        works_.clear();
      }
      const std::size_t before = open_.size();
      std::erase_if(open_, [](const auto& work) { return work->advance(no_wait); });
      if (open_.size() != before) {
        since = muster::clock::now();
        continue;
      }
      if (open_.empty()) continue;
      // A thread that computes may need this core: the longer a call takes, the longer this thread sleeps.
      const auto waited = (muster::clock::now() - since) / 8;
      std::this_thread::sleep_for(
          std::clamp<muster::clock::duration>(waited, std::chrono::microseconds(20), std::chrono::microseconds(1000)));
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<c10::intrusive_ptr<open_work>> works_;  // new works
  std::vector<c10::intrusive_ptr<open_work>> open_;   // the works that the thread advances
  std::jthread thread_;
};

progress_thread*& progress() {
  static progress_thread* thread = new progress_thread();  // a child of fork() must not destroy it
  return thread;
}

// Throws the exception of a signal's handler. The interpreter's lock is not held by a waiter.
void check_signals() {
  if (Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

c10::intrusive_ptr<c10::ivalue::Future> tensors_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

c10::intrusive_ptr<c10::ivalue::Future> result_future(bool is_good, const std::exception_ptr& failure) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  auto outcome = c10d::WorkResult::SUCCESS;
  if (!is_good) outcome = c10d::WorkResult::COMM_ERROR;
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const muster::timeout_error&) {
    outcome = c10d::WorkResult::TIMEOUT;
  } catch (...) {
  }
  future->markCompleted(c10::IValue(static_cast<std::uint8_t>(outcome)));
  return future;
}

}  // namespace

void stop_progress() noexcept { progress()->stop(); }
void forget_progress() noexcept {
  progress() = new progress_thread();
  ++connection::forks;
}

c10::intrusive_ptr<c10::ivalue::Future> done_work::getFuture() {
  auto future = tensors_future();
  future->markCompleted(c10::IValue(result_));
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> done_work::getFutureResult() { return result_future(true, nullptr); }

open_work::open_work(std::shared_ptr<connection> ranks, c10d::OpType kind, const char* title,
                     std::vector<at::Tensor> inputs, std::vector<at::Tensor> result, std::uint64_t sequence)
    : Work(-1, kind, title, inputs),
      ranks_(std::move(ranks)),
      inputs_(std::move(inputs)),
      result_(std::move(result)),
      sequence_(sequence) {}

open_work::~open_work() = default;

void open_work::complete(std::exception_ptr failure) noexcept {
  try {
    if (!failure && finish_) finish_();
  } catch (...) {
    failure = std::current_exception();
  }
  finish_ = nullptr;
  inputs_.clear();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    future = future_;
    exception_ = failure;
    completed_ = true;
    if (recordFunctionEndCallback_) {
      recordFunctionEndCallback_();
      recordFunctionEndCallback_ = nullptr;
    }
    is_over_ = true;
  }
  cv_.notify_all();
  if (!future) return;
  try {
    if (failure)
      future->setError(failure);
    else
      future->markCompleted(c10::IValue(result_));
  } catch (...) {  // a callback of the future
  }
}

bool open_work::advance(muster::seconds limit) noexcept {
  if (is_over_) return true;
  std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn.owns_lock()) {
    if (limit > no_wait) std::this_thread::sleep_for(std::chrono::microseconds(20));
    return is_over_;
  }
  if (is_over_) return true;
  try {
    if (!poll(limit)) return false;
    release();
    complete(nullptr);
  } catch (...) {
    release();
    complete(std::current_exception());
  }
  return true;
}

bool open_work::isCompleted() { return advance(no_wait); }

bool open_work::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

bool open_work::wait(std::chrono::milliseconds timeout) {
  const auto until = timeout == kNoTimeout ? muster::clock::time_point::max()
                                           : muster::deadline_after(std::chrono::duration<double>(timeout));
  auto next_check = muster::deadline_after(muster::seconds(0.1));
  while (!advance(slice)) {
    const auto now = muster::clock::now();
    if (now >= until) {
      throw muster::timeout_error(
          "wait", {},
          "Operation timed out after " + std::to_string(timeout.count()) + "ms (the work is outstanding); wait longer");
    }
    if (now < next_check) continue;
    next_check = muster::deadline_after(muster::seconds(0.1));
    try {
      check_signals();
    } catch (...) {
      ranks_->abort("a signal interrupted a rank");
      throw;
    }
  }
  const std::lock_guard lock(mutex_);
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void open_work::abort() { ranks_->abort("a work was aborted"); }

c10::intrusive_ptr<c10::ivalue::Future> open_work::getFuture() {
  bool is_over = false;
  std::exception_ptr failure;
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    future_ = tensors_future();
    is_over = completed_;
    failure = exception_;
  }
  if (!is_over) {
    watch();
  } else if (failure) {
    future_->setError(failure);
  } else {
    future_->markCompleted(c10::IValue(result_));
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> open_work::getFutureResult() {
  while (!advance(slice)) {
  }
  return result_future(isSuccess(), exception());
}

void open_work::watch() {
  {
    const std::lock_guard lock(mutex_);
    if (is_watched_ || completed_) return;
    is_watched_ = true;
  }
  progress()->add(*this);
}

void run(connection& ranks, const muster::detail::typed_call& call) {
  std::unique_lock held(ranks.mutex);
  muster::work work = muster::detail::start(ranks.ranks, call);
  while (!work.wait_for(muster::seconds(0.1))) {
    held.unlock();
    try {
      ranks.check();
      check_signals();
    } catch (...) {
      ranks.abort("a signal interrupted a rank");
      held.lock();
      work = {};
      throw;
    }
    held.lock();
  }
}

bool collective_work::poll(muster::seconds limit) {
  ranks_->check();
  std::unique_lock held(ranks_->mutex, std::defer_lock);
  if (limit > no_wait)
    held.lock();
  else if (!held.try_lock())
    return false;
  return limit > no_wait ? work_->wait_for(limit) : work_->test();
}

void collective_work::release() noexcept {
  if (!work_) return;
  const std::lock_guard held(ranks_->mutex);
  work_.reset();
}

bool message_work::poll(muster::seconds limit) {
  const auto until = muster::deadline_after(limit);
  for (; done_ < messages_.size(); ++done_) {
    auto& message = *messages_[done_];
    const bool is_done = limit > no_wait ? ranks_->port.wait_until(message, until) : ranks_->port.test(message);
    if (!is_done) return false;
    source_ = message.source();
  }
  return true;
}

bool joined_work::isCompleted() {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isCompleted(); });
}

bool joined_work::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isSuccess(); });
}

bool joined_work::wait(std::chrono::milliseconds timeout) {
  for (const auto& part : parts_) part->wait(timeout);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> joined_work::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  auto all = c10::collectAll(futures);
  auto tensors = result_;
  return all->then([tensors](c10::ivalue::Future& /*parts*/) { return c10::IValue(tensors); },
                   c10::ListType::create(c10::TensorType::get()));
}

}  // namespace muster::torch_backend
