#include <muster/comm/rendezvous/memory_store.hpp>

namespace muster::inline v0 {

class memory_store::held_lease final : public store_lease::holder {
 public:
  held_lease(std::shared_ptr<contents> in, std::uint64_t id) : in_(std::move(in)), id_(id) {}
  ~held_lease() override {
    const std::lock_guard lock(in_->mutex);
    in_->leases.erase(id_);
    std::erase_if(in_->items, [&](const auto& one) { return one.second.lease == id_; });
    in_->changed.notify_all();
  }
  std::uint64_t id() const noexcept override { return id_; }
  bool held() const noexcept override { return true; }

 private:
  std::shared_ptr<contents> in_;
  std::uint64_t id_;
};

store_entry memory_store::get(std::string_view key, clock::time_point) {
  detail::check_store_key(key, where());
  const std::lock_guard lock(self_->mutex);
  const auto found = self_->items.find(key);
  return found == self_->items.end() ? store_entry{} : found->second.entry;
}

store_swap memory_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                          std::optional<std::string_view> value, clock::time_point,
                                          std::uint64_t lease) {
  detail::check_store_key(key, where());
  detail::check_store_value(value, where());
  const std::lock_guard lock(self_->mutex);
  if (lease != 0 && !self_->leases.contains(lease))
    throw store_lease_ended("the lease under which '" + std::string(key) + "' was to be written has ended");
  const auto found = self_->items.find(key);
  const store_entry now = found == self_->items.end() ? store_entry{} : found->second.entry;
  if (now.version != expected) return {false, now};
  if (!value) {
    if (found != self_->items.end()) self_->items.erase(found);
    self_->changed.notify_all();
    return {true, {}};
  }
  auto& to = self_->items[std::string(key)];
  to = {{++self_->version, std::string(*value)}, lease};
  self_->changed.notify_all();
  return {true, {to.entry.version, {}}};
}

std::optional<store_entry> memory_store::watch(std::string_view key, std::uint64_t known, clock::time_point until) {
  detail::check_store_key(key, where());
  std::unique_lock lock(self_->mutex);
  const auto version = [&] {
    const auto found = self_->items.find(key);
    return found == self_->items.end() ? 0 : found->second.entry.version;
  };
  if (!self_->changed.wait_until(lock, until, [&] { return version() != known; })) return std::nullopt;
  const auto found = self_->items.find(key);
  return found == self_->items.end() ? store_entry{} : found->second.entry;
}

store_lease memory_store::lease(seconds ttl, clock::time_point) {
  detail::check_store_ttl(ttl, where());
  const std::lock_guard lock(self_->mutex);
  const auto id = ++self_->last_lease;
  self_->leases[id] = true;
  return store_lease(std::make_unique<held_lease>(self_, id));
}

}  // namespace muster::inline v0
