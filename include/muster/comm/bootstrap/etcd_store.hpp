// A store whose table is held by an etcd.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/store.hpp>

namespace muster { inline namespace v0 {

/// A store over the keys of an etcd (version 3.4 or later) that begin with "muster/NAME/", through etcd's HTTP gateway.
///
/// The store exists as long as a process has it open: the first process that opens it removes the keys of an earlier
/// job. A call waits for an unreachable etcd until its deadline, because the etcd may recover; this is no peer_failure.
/// A swap whose reply was lost is a timeout_error too, as the swap may have happened. etcd does not detect that a
/// process died or was disconnected: the client keys of the process expire ten seconds later. A process that was only
/// disconnected then registers again, within a few seconds; its writes of client keys throw peer_failure until then.
class etcd_store final : public any_store {
 public:
  /// `endpoints` is "host:port", or several members in one cluster, separated by commas: the first that answers is
  /// used. `scheme` is "http" or "https", which trusts the certificates that the system trusts. `name` consists of
  /// letters, digits, '-', '_' and '.'. Throws timeout_error when no member answers by the deadline,
  /// configuration_error when etcd refuses. The swaps of an onlooker throw configuration_error.
  etcd_store(std::string_view endpoints, std::string_view scheme, std::string_view name, clock::time_point until,
             store_role role = store_role::member);
  etcd_store(etcd_store&&) noexcept;
  etcd_store& operator=(etcd_store&&) = delete;
  /// Closes the store, and clears it when no other process has it open. Waits at most about two seconds for an
  /// unreachable etcd.
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

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
