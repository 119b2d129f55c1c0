#pragma once

#include <muster/comm/bootstrap/memory_store.hpp>

#include <condition_variable>
#include <map>
#include <mutex>

#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {

struct memory_store::contents {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::map<std::string, store_entry, std::less<>> items;
  std::uint64_t version = 0;

  [[nodiscard]] store_entry at(std::string_view key) const {
    const auto found = items.find(key);
    return found == items.end() ? store_entry{} : found->second;
  }
};

MUSTER_INLINE memory_store::memory_store() : self_(std::make_shared<contents>()) {}

MUSTER_INLINE store_entry memory_store::get(std::string_view key, clock::time_point) {
  detail::check_store_key(key, where());
  const std::lock_guard lock(self_->mutex);
  return self_->at(key);
}

MUSTER_INLINE store_swap memory_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                                        std::optional<std::string_view> value, clock::time_point,
                                                        store_life) {
  detail::check_store_key(key, where());
  detail::check_store_value(value, where());
  const std::lock_guard lock(self_->mutex);
  if (auto entry = self_->at(key); entry.version != expected) return {false, std::move(entry)};
  self_->items.erase(std::string(key));
  if (value) self_->items[std::string(key)] = {++self_->version, std::string(*value)};
  self_->changed.notify_all();
  return {true, {value ? self_->version : 0, {}}};
}

MUSTER_INLINE std::optional<store_entry> memory_store::watch(std::string_view key, std::uint64_t known,
                                                             clock::time_point until, const std::stop_token& stop) {
  detail::check_store_key(key, where());
  std::unique_lock lock(self_->mutex);
  const auto is_new = [&] { return self_->at(key).version != known; };
  if (!self_->changed.wait_until(lock, stop, until, is_new)) return std::nullopt;
  return self_->at(key);
}

}}  // namespace muster::v0
