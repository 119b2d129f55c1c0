// Shared memory inside of a host, another transport between hosts.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/comm/task.hpp>
#include <muster/comm/transport.hpp>

#include "../shm/transport.hpp"
#include "host_map.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// One rank of a group that stretches over hosts. Barrier, broadcast, reduce and allreduce go in two levels: the ranks
/// of a host combine through their memory, one rank of each host talks to its like on the others, and the result goes
/// to the host's ranks through memory again. A large allreduce is cut into blocks, one for each rank that the smallest
/// host has: the ranks of the same number work on the same block, so that every link of a host is used, and no byte
/// leaves a host twice. All else, and all messages, go by the transport between the hosts, which reaches every rank.
class hierarchical_transport final : public transport_decorator {
 public:
  /// `within` connects the ranks of this host, in the order of `hosts`; null for a rank that is alone there.
  hierarchical_transport(std::unique_ptr<transport> between, std::unique_ptr<shm_transport> within, host_map hosts);

  [[nodiscard]] transport_abilities abilities() const override;
  [[nodiscard]] std::pmr::memory_resource* memory() const override { return within_ ? within_->memory() : nullptr; }
  [[nodiscard]] bool oversubscribed() const override {
    return within_ ? within_->oversubscribed() : inner().oversubscribed();
  }
  [[nodiscard]] bool should_yield() const override {
    return inside_ ? within_->should_yield() : inner().should_yield();
  }
  bool native(const collective_call& call, request& r) override;
  bool test(request& r) override;
  void cancel(request& r) noexcept override;
  void notify(int peer, const control_message& message) override;
  bool poll(control_message& message) override;
  void pause(clock::time_point until) override;
  [[nodiscard]] std::uint64_t prepare(std::span<const int> members) override;
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& some) override;

 private:
  // Below so many bytes the rounds count, not the bytes: one rank of each host does it all.
  static constexpr std::size_t one_rail_up_to = 8192;

  [[nodiscard]] int place() const { return hosts_.place(rank()); }
  /// Those of the members that are on this host, as `within_` counts them.
  [[nodiscard]] std::vector<int> members_here(std::span<const int> members) const;
  [[nodiscard]] int ranks_here() const { return static_cast<int>(hosts_.neighbours(rank()).size()); }
  /// The rank that represents this host in a collective with a root.
  [[nodiscard]] int speaker_for(int root) const;
  [[nodiscard]] int rails_for(std::size_t bytes) const { return bytes <= one_rail_up_to ? 1 : hosts_.rails; }

  /// How a collective goes in two levels; null for one that does not.
  using body_type = task (*)(executor& f, hierarchical_transport& self, const collective_call& call);
  [[nodiscard]] static body_type body_of(collective kind) noexcept;
  static task allreduce(executor& f, hierarchical_transport& self, const collective_call& call);
  static task within_by_rails(executor& f, hierarchical_transport& self, const collective_call& call, int rails,
                              bool combines);
  static task reduce(executor& f, hierarchical_transport& self, const collective_call& call);
  static task broadcast(executor& f, hierarchical_transport& self, const collective_call& call);
  static task barrier(executor& f, hierarchical_transport& self, const collective_call& call);
  /// One collective of the ranks of this host; nothing where there is one only.
  static task within(executor& f, hierarchical_transport& self, const collective_call& step);

  std::unique_ptr<shm_transport> within_;
  host_map hosts_;

  // The collective under way.
  bool inside_ = false;  // it waits for ranks of this host
  frame_pool pool_;
  std::vector<buffer<std::byte>> scratch_;
  std::vector<int> across_;  // the ranks of other hosts that this one talks to, and itself
  std::optional<executor> steps_;
  task body_;
};

}}}  // namespace muster::v0::detail
