#pragma once

#include <muster/comm/bootstrap/stores/watched_record.hpp>

#include <muster/comm/comm_timing.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {

MUSTER_INLINE watched_record::watched_record(std::shared_ptr<any_store> store, std::string key, warning warning_text,
                                             store_entry initial, std::function<void()> notify)
    : store_(std::move(store)),
      key_(std::move(key)),
      warning_(std::move(warning_text)),
      notify_(std::move(notify)),
      has_entry_(static_cast<bool>(initial)),
      newest_(std::move(initial)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

MUSTER_INLINE std::optional<store_entry> watched_record::take() {
  if (!has_entry_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard held(mutex_);
  has_entry_ = false;
  return newest_;
}

MUSTER_INLINE void watched_record::swap(std::uint64_t expected, std::string text) {
  const std::lock_guard held(mutex_);
  swap_.emplace(expected, std::move(text));
  interruption_.request_stop();
}

MUSTER_INLINE void watched_record::check() const {
  const std::lock_guard held(mutex_);
  if (broken_) std::rethrow_exception(broken_);
}

MUSTER_INLINE void watched_record::update(store_entry entry, bool answered) {
  {
    const std::lock_guard held(mutex_);
    const bool is_newer = entry.version > newest_.version;
    if (is_newer) newest_ = std::move(entry);
    if (!is_newer && !answered) return;
    has_entry_ = true;
  }
  notify_();
}

MUSTER_INLINE std::string watched_record::keep_exception() {
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

MUSTER_INLINE void watched_record::run(const std::stop_token& stop) {
  const std::stop_callback ends(stop, [this] {
    const std::lock_guard held(mutex_);
    interruption_.request_stop();
  });
  std::uint64_t known_version = 0;
  bool reported = false;
  for (;;) {
    std::unique_lock held(mutex_);
    const auto requested = std::exchange(swap_, std::nullopt);
    interruption_ = {};
    const auto interrupted = interruption_.get_token();
    held.unlock();
    if (stop.stop_requested()) return;
    if (requested) {
      write(requested->first, requested->second);
      continue;
    }
    try {
      auto entry = store_->watch(key_, known_version, clock::now() + store_timing::watch_slice, interrupted);
      reported = false;
      if (!entry) continue;
      known_version = entry->version;
      if (known_version != 0) update(std::move(*entry), false);
    } catch (...) {
      const auto reason = keep_exception();
      if (!std::exchange(reported, true))
        log(warning_.level, warning_.subject + " cannot be read (" + reason + "); " + warning_.outcome);
      notify_();
      std::this_thread::sleep_for(store_timing::watch_retry);
    }
  }
}

MUSTER_INLINE void watched_record::write(std::uint64_t expected, std::string text) {
  try {
    auto result = store_->compare_and_swap(key_, expected, text, deadline_after(store_timing::swap));
    if (result.swapped) result.now.value = std::move(text);
    update(std::move(result.now), true);
  } catch (...) {
    log(log_level::debug, warning_.subject + " was not written: " + keep_exception());
    has_failure_ = true;
    notify_();
  }
}

}}}  // namespace muster::v0::detail
