#include "map_keeper.hpp"

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

namespace muster::inline v0::ps::detail {
namespace {

constexpr std::chrono::milliseconds look_after{50};  // so soon a keeper that is to end does
constexpr seconds patience{5.0};

}  // namespace

map_keeper::map_keeper(std::shared_ptr<any_store> store, std::string key, const shard_map& first,
                       clock::time_point until)
    : store_(std::move(store)), key_(std::move(key)) {
  const auto text = first.encode();
  const auto left = store_->compare_and_swap(key_, 0, text, until);
  learn(left.now.version, left.swapped ? text : left.now.value);
  watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  writer_ = std::jthread([this](const std::stop_token& stop) { write(stop); });
}

shard_map map_keeper::read(const std::string& text) const {
  auto map = shard_map::decode(text);
  if (map) return std::move(*map);
  throw data_error({store_->where()}, "what the store has under '" + key_ +
                                          "' is no map of ranges (it is of another version of muster, or of another "
                                          "program); give each job a store of its own");
}

void map_keeper::learn(std::uint64_t version, const std::string& text) {
  auto map = read(text);
  const std::lock_guard lock(mutex_);
  if (version <= version_) return;
  version_ = version;
  newest_ = std::move(map);
  news_ = true;
}

std::optional<shard_map> map_keeper::take() {
  if (!news_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  news_ = false;
  return newest_;
}

void map_keeper::swap(std::uint64_t expected, const shard_map& next) {
  const std::lock_guard lock(mutex_);
  swap_.emplace(expected, next);
  wanted_.notify_one();
}

void map_keeper::watch(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::uint64_t known = 0;
    {
      const std::lock_guard lock(mutex_);
      known = version_;
    }
    try {
      if (const auto now = store_->watch(key_, known, clock::now() + look_after); now && *now)
        learn(now->version, now->value);
    } catch (const std::exception& trouble) {
      // Without the store nobody can be fenced and nothing moves; pushes and pulls go on.
      log(log_level::debug, "the store of the shard map does not answer (" + std::string(trouble.what()) + ")");
      std::this_thread::sleep_for(look_after);
    }
  }
}

void map_keeper::write(const std::stop_token& stop) {
  for (;;) {
    std::uint64_t version = 0;
    shard_map next;
    {
      std::unique_lock lock(mutex_);
      if (!wanted_.wait(lock, stop, [&] { return swap_.has_value(); })) return;
      const std::uint64_t expected = swap_->first;
      next = std::move(swap_->second);
      swap_.reset();
      version = version_;
      if (newest_.version != expected) {
        news_ = true;  // somebody was faster
        continue;
      }
    }
    try {
      const auto text = next.encode();
      const auto done = store_->compare_and_swap(key_, version, text, deadline_after(patience));
      if (done.now) learn(done.now.version, done.swapped ? text : done.now.value);
      if (!done.swapped) news_ = true;
    } catch (const std::exception& trouble) {
      log(log_level::debug, "the store of the shard map takes no change (" + std::string(trouble.what()) + ")");
      failed_ = true;
    }
  }
}

}  // namespace muster::inline v0::ps::detail
