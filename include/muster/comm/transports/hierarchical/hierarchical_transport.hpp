// The hierarchical transport: shared memory within a host, and another transport between hosts.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/comm/task.hpp>
#include <muster/comm/transport.hpp>

#include <muster/comm/transports/hierarchical/host_map.hpp>
#include <muster/comm/transports/shm/shm_transport.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A rank in a group that spans several hosts. Barrier, broadcast, reduce and allreduce have two levels:
/// - the ranks of a host combine their data through shared memory,
/// - on each host one rank exchanges the result with the corresponding ranks on other hosts,
/// - the ranks of a host receive the result through shared memory.
///
/// A large allreduce is divided into as many blocks as the smallest host has ranks (`host_map::rails`). The ranks with
/// the same number on their hosts combine the same block. So all links of a host are used, and no byte leaves a host
/// twice. All other collectives, and all messages, use the transport between the hosts, which connects all ranks.
class hierarchical_transport final : public transport_decorator {
 public:
  /// Combines two transports. `network` connects all ranks. `host_transport` connects the ranks on this host, in the
  /// order of `hosts`; null for the only rank on a host.
  hierarchical_transport(std::unique_ptr<transport> network, std::unique_ptr<shm_transport> host_transport,
                         host_map hosts);

  [[nodiscard]] transport_abilities abilities() const override;
  [[nodiscard]] std::pmr::memory_resource* memory() const override {
    return host_transport_ ? host_transport_->memory() : nullptr;
  }
  [[nodiscard]] bool oversubscribed() const override {
    return host_transport_ ? host_transport_->oversubscribed() : inner().oversubscribed();
  }
  [[nodiscard]] bool should_yield() const override {
    return waits_on_host_ ? host_transport_->should_yield() : inner().should_yield();
  }
  bool native(const collective_call& call, request& req) override;
  bool test(request& req) override;
  void cancel(request& req) noexcept override;
  void notify(int peer, const control_message& message) override;
  bool poll(control_message& message) override;
  void pause(clock::time_point deadline) override;
  [[nodiscard]] std::uint64_t prepare(std::span<const int> members) override;
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& call) override;

 private:
  // Up to this size the number of rounds determines the time, not the bytes: one rank a host handles all data.
  static constexpr std::size_t one_rail_up_to = 8192;

  [[nodiscard]] int local_rank() const { return hosts_.local_rank(rank()); }
  /// Returns the members on this host, by their numbers in `host_transport_`.
  [[nodiscard]] std::vector<int> members_on_host(std::span<const int> members) const;
  [[nodiscard]] int ranks_on_host() const { return static_cast<int>(hosts_.neighbours(rank()).size()); }
  /// Returns the rank that represents this host in a collective with the given root.
  [[nodiscard]] int representative_for(int root) const;
  [[nodiscard]] int rails_for(std::size_t bytes) const { return bytes <= one_rail_up_to ? 1 : hosts_.rails; }

  /// Returns the two-level coroutine for a collective; null if there is none.
  using body_type = task (*)(collective_context& ctx, hierarchical_transport& self, const collective_call& call);
  [[nodiscard]] static body_type body_of(collective kind) noexcept;
  static task allreduce(collective_context& ctx, hierarchical_transport& self, const collective_call& call);
  /// With `combines`: afterwards the ranks with local rank 0 to rails - 1 on this host hold their block, combined over
  /// the host. Without: the blocks are sent to all ranks on this host.
  static task within_host_by_rails(collective_context& ctx, hierarchical_transport& self, const collective_call& call,
                                   int rails, bool combines);
  static task reduce(collective_context& ctx, hierarchical_transport& self, const collective_call& call);
  static task broadcast(collective_context& ctx, hierarchical_transport& self, const collective_call& call);
  static task barrier(collective_context& ctx, hierarchical_transport& self, const collective_call& call);
  /// Runs one collective among the ranks on this host; does nothing if there is only one.
  static task within_host(collective_context& ctx, hierarchical_transport& self, const collective_call& inner);

  std::unique_ptr<shm_transport> host_transport_;
  host_map hosts_;

  // The pending collective.
  bool waits_on_host_ = false;  // set while the collective waits for ranks on this host
  frame_pool pool_;
  std::vector<buffer<std::byte>> scratch_;
  std::vector<int> network_ranks_;  // this rank and the ranks on other hosts with which it exchanges data
  std::optional<collective_context> ctx_;
  task body_;
};

}}}  // namespace muster::v0::detail
