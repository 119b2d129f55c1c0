#include <muster/comm/tcp/embedded_store.hpp>

#include "replica_node.hpp"

namespace muster::inline v0 {

embedded_store::embedded_store(std::string_view places, const embedded_store_options& options,
                               clock::time_point until) {
  auto node = std::make_shared<detail::replica_node>(places, options);
  node->await_membership(until);
  self_ = std::move(node);
}
embedded_store::embedded_store(embedded_store&&) noexcept = default;
embedded_store::~embedded_store() = default;

std::string embedded_store::where() const { return self_->where(); }

store_entry embedded_store::get(std::string_view key, clock::time_point until) { return self_->get(key, until); }

store_swap embedded_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                            std::optional<std::string_view> value, clock::time_point until,
                                            std::uint64_t lease) {
  return self_->compare_and_swap(key, expected, value, until, lease);
}

std::optional<store_entry> embedded_store::watch(std::string_view key, std::uint64_t known, clock::time_point until) {
  return self_->watch(key, known, until);
}

store_lease embedded_store::lease(seconds ttl, clock::time_point until) {
  return detail::store_calls::lease(self_, ttl, until);
}

}  // namespace muster::inline v0
