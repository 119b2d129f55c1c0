#include "watched_record.hpp"

#include <muster/core/error.hpp>

#include "../../timing.hpp"

namespace muster { inline namespace v0 { namespace detail {

watched_record::watched_record(std::shared_ptr<any_store> store, std::string key, warning text, store_entry first,
                               std::function<void()> ring)
    : store_(std::move(store)),
      key_(std::move(key)),
      warning_(std::move(text)),
      ring_(std::move(ring)),
      news_(static_cast<bool>(first)),
      newest_(std::move(first)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
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
  interruption_.request_stop();
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

void watched_record::run(const std::stop_token& stop) {
  const std::stop_callback ends(stop, [this] {
    const std::lock_guard held(mutex_);
    interruption_.request_stop();
  });
  std::uint64_t known = 0;
  bool told = false;
  for (;;) {
    std::unique_lock held(mutex_);
    const auto wanted = std::exchange(swap_, std::nullopt);
    interruption_ = {};
    const auto interrupted = interruption_.get_token();
    held.unlock();
    if (stop.stop_requested()) return;
    if (wanted) {
      write(wanted->first, wanted->second);
      continue;
    }
    try {
      auto seen = store_->watch(key_, known, clock::now() + store_timing::watch_slice, interrupted);
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

void watched_record::write(std::uint64_t expected, std::string text) {
  try {
    auto done = store_->compare_and_swap(key_, expected, text, deadline_after(store_timing::swap));
    if (done.swapped) done.now.value = std::move(text);
    learn(std::move(done.now), true);
  } catch (...) {
    log(log_level::debug, warning_.what + " was not written: " + keep_exception());
    unanswered_ = true;
    ring_();
  }
}

}}}  // namespace muster::v0::detail
