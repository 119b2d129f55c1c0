// A store that the processes of a job carry themselves.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/rendezvous/store.hpp>

namespace muster::inline v0 {
namespace detail {
class store_calls;
}

struct embedded_store_options {
  std::string token{};             ///< what the processes of the job know and nobody else does
  int of = 1;                      ///< how many processes begin the job
  std::string host{};              ///< equal at processes of one host, and at no others; empty: as `host_identity` says
  std::string interface = "auto";  ///< under which addresses this host is reached, as `--interface` says
  seconds beat{0.1};               ///< how often the members hear of each other
  int missed_beats = 5;            ///< after so many a silent one is suspect
};

/// Models `store` in the memory of all who have it open: each holds all of it, one of them leads, and when that one is
/// gone the oldest that is left does. So the store lives as long as one of them does and loses nothing that was ever
/// answered: no server is needed, and none can be missing.
///
/// Every write is at every member before it is answered, so a store of many members is slower to write to; a process
/// that joins gets a copy. A process that ends is left out at once; one that is silent or cut off when more than half
/// of the members agree, or half of them with the oldest: so of two processes on two hosts the one that came first goes
/// on without the other, and not the other way round. On the other side of the cut calls reach their deadlines, and
/// when it heals they throw store_left_behind. A process that is silent for four times as long on the host of the one
/// that leaves it out is killed there.
///
/// Members connect to each other as they need to, prove by challenge and response that they know the token, and drop
/// strangers. Thread safe.
class embedded_store {
 public:
  /// Opens the store that is found at "host:port", or at one of several ("10.0.0.1:29500,10.0.0.2:29500"). A process on
  /// such a host holds the port, and another one of that host when it ends. The store is begun at the first of them,
  /// when all of several processes that begin the job are there, or more than half of them and none has heard of it for
  /// two times the silence that makes a member suspect.
  ///
  /// Throws configuration_error when a host is unknown or whoever listens there does not know the token, timeout_error
  /// when there is no store by the deadline.
  embedded_store(std::string_view places, const embedded_store_options& options, clock::time_point until);
  embedded_store(embedded_store&&) noexcept;
  embedded_store& operator=(embedded_store&&) = delete;
  /// Ends the leases of this object and leaves the store to the others.
  ~embedded_store();

  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until);
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, std::uint64_t lease = 0);
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until);
  [[nodiscard]] store_lease lease(seconds ttl, clock::time_point until);
  [[nodiscard]] std::string where() const;

 private:
  std::shared_ptr<detail::store_calls> self_;
};

static_assert(store<embedded_store>);

}  // namespace muster::inline v0
