#include <muster/comm/bootstrap/memory_store.hpp>

namespace muster::inline v0 {

store_entry memory_store::get(std::string_view key, clock::time_point) {
  detail::check_store_key(key, where());
  const std::lock_guard lock(self_->mutex);
  const auto found = self_->items.find(key);
  return found == self_->items.end() ? store_entry{} : found->second;
}

store_swap memory_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                          std::optional<std::string_view> value, clock::time_point, store_life) {
  detail::check_store_key(key, where());
  detail::check_store_value(value, where());
  const std::lock_guard lock(self_->mutex);
  const auto found = self_->items.find(key);
  const store_entry now = found == self_->items.end() ? store_entry{} : found->second;
  if (now.version != expected) return {false, now};
  store_entry made;
  if (value) {
    made = self_->items[std::string(key)] = {++self_->version, std::string(*value)};
  } else if (now) {
    self_->items.erase(found);
  }
  self_->changed.notify_all();
  return {true, {made.version, {}}};
}

std::optional<store_entry> memory_store::watch(std::string_view key, std::uint64_t known, clock::time_point until) {
  detail::check_store_key(key, where());
  std::unique_lock lock(self_->mutex);
  const auto now = [&] {
    const auto found = self_->items.find(key);
    return found == self_->items.end() ? store_entry{} : found->second;
  };
  if (!self_->changed.wait_until(lock, until, [&] { return now().version != known; })) return std::nullopt;
  return now();
}

}  // namespace muster::inline v0
