#include "watched_record.hpp"

#include <utility>

#include <muster/core/error.hpp>

#include "../../timing.hpp"

namespace muster::inline v0::detail {

watched_record::watched_record(std::shared_ptr<any_store> store, std::string key, warning text, store_entry first,
                               std::function<void()> ring)
    : store_(std::move(store)),
      key_(std::move(key)),
      warning_(std::move(text)),
      ring_(std::move(ring)),
      news_(static_cast<bool>(first)),
      newest_(std::move(first)) {
  watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  writer_ = std::jthread([this](const std::stop_token& stop) { write(stop); });
}

watched_record::~watched_record() {  // both at once: each may wait for the store
  watcher_.request_stop();
  writer_.request_stop();
}

std::optional<store_entry> watched_record::take() {
  if (!news_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard held(mutex_);
  news_ = false;
  return newest_;
}

void watched_record::swap(std::uint64_t expected, std::string text) {
  const std::lock_guard held(mutex_);
  swap_.emplace(expected, std::move(text));
  wanted_.notify_one();
}

void watched_record::check() const {
  const std::lock_guard held(mutex_);
  if (broken_) std::rethrow_exception(broken_);
}

void watched_record::learn(store_entry now, bool answered) {
  {
    const std::lock_guard held(mutex_);
    const bool is_newer = now.version > newest_.version;
    if (is_newer) newest_ = std::move(now);
    if (!is_newer && !answered) return;
    news_ = true;
  }
  ring_();
}

std::string watched_record::keep_exception() {
  const auto failed = std::current_exception();
  bool passes = false;
  try {
    throw;
  } catch (const store_left_behind&) {
  } catch (const error&) {
    passes = true;
  } catch (...) {
  }
  const std::lock_guard held(mutex_);
  if (!passes) broken_ = failed;
  return muster::describe(failed);
}

void watched_record::watch(const std::stop_token& stop) {
  std::uint64_t known = 0;
  bool told = false;
  while (!stop.stop_requested()) {
    try {
      auto seen = store_->watch(key_, known, clock::now() + store_timing::watch_slice, stop);
      told = false;
      if (!seen) continue;
      known = seen->version;
      if (known != 0) learn(std::move(*seen), false);
    } catch (...) {
      const auto why = keep_exception();
      if (!std::exchange(told, true))
        log(warning_.level, warning_.what + " cannot be read (" + why + "); " + warning_.outcome);
      ring_();
      std::this_thread::sleep_for(store_timing::watch_retry);
    }
  }
}

void watched_record::write(const std::stop_token& stop) {
  for (;;) {
    std::pair<std::uint64_t, std::string> next;  // the version that is expected, and the text
    {
      std::unique_lock held(mutex_);
      if (!wanted_.wait(held, stop, [this] { return swap_.has_value(); })) return;
      next = std::move(*swap_);
      swap_.reset();
    }
    try {
      auto done = store_->compare_and_swap(key_, next.first, next.second, deadline_after(store_timing::swap));
      if (done.swapped) done.now.value = std::move(next.second);
      learn(std::move(done.now), true);
    } catch (...) {
      log(log_level::debug, warning_.what + " was not written: " + keep_exception());
      unanswered_ = true;
      ring_();
    }
  }
}

}  // namespace muster::inline v0::detail
