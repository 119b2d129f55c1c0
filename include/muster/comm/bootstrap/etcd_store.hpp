// A store that an etcd keeps.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/store.hpp>

namespace muster { inline namespace v0 {

/// A store over the keys of an etcd (version 3.4 or later) that begin with "muster/NAME/", by its HTTP gateway.
///
/// It lives as long as a process has it open: the one that opens it first clears what a former one left. An etcd that
/// cannot be reached is waited for until a call's deadline, and may come back: that is no peer_failure. A swap whose
/// answer was lost on the way is a timeout_error too, as it may have happened. etcd does not see that a process died or
/// was cut off: its keys vanish ten seconds later, and what it writes of that kind from then on throws peer_failure.
class etcd_store final : public any_store {
 public:
  /// `endpoints` is "host:port", or several with commas between them, members of one cluster: the first that answers is
  /// used. `scheme` is "http" or "https", which trusts what the system does. `name` is of letters, digits, '-', '_' and
  /// '.'. Throws timeout_error when none answers by the deadline, configuration_error when it refuses. The swaps of an
  /// onlooker throw configuration_error.
  etcd_store(std::string_view endpoints, std::string_view scheme, std::string_view name, clock::time_point until,
             store_role role = store_role::member);
  etcd_store(etcd_store&&) noexcept;
  etcd_store& operator=(etcd_store&&) = delete;
  /// Clears the store when no other process has it open.
  ~etcd_store() override;

  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until) override;
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, store_life life = store_life::of_store) override;
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until,
                                                 const std::stop_token& stop = {}) override;
  [[nodiscard]] std::string where() const override;

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

}}  // namespace muster::v0
