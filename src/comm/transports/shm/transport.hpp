// Ranks on one host as processes, over memory that they share.
#pragma once

#include <muster/comm/transport.hpp>

#include "messages.hpp"
#include "native.hpp"
#include "shm_group.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// One rank of a group of processes of one host.
class shm_transport final : public transport {
 public:
  shm_transport(std::shared_ptr<shm_host> host, std::vector<int> members, int rank,
                std::span<const std::uint64_t> slots);

  [[nodiscard]] int rank() const override { return shm_.rank(); }
  [[nodiscard]] int size() const override { return shm_.size(); }
  [[nodiscard]] transport_abilities abilities() const override;
  [[nodiscard]] std::pmr::memory_resource* memory() const override { return memory_; }
  [[nodiscard]] bool oversubscribed() const override { return shm_.host().oversubscribed(); }
  [[nodiscard]] bool should_yield() const override { return oversubscribed() && native_.waits_for_this_core(); }
  void send(request& r) override { messages_.send(r, *this); }
  void receive(request& r) override { messages_.receive(r, *this); }
  bool native(const collective_call& call, request& r) override;
  bool test(request& r) override {
    if (r.state != native_state) return messages_.test(r);
    if (messages_.owes()) messages_.move();
    return native_.test(r);
  }
  void cancel(request& r) noexcept override;
  bool move_buffer(request& r, std::byte* to) noexcept override;
  void notify(int peer, const control_message& message) override;
  bool poll(control_message& message) override;
  void pause(clock::time_point until) override;
  /// What a rank does now and then while it waits: sees whether a peer has ended, for `poll` to tell.
  void look_after_peers();
  /// See shm_group::name.
  void name(std::vector<int> names) noexcept { shm_.name(std::move(names)); }
  /// Makes this rank's slot in a group of those members; returns where it lies.
  [[nodiscard]] std::uint64_t prepare(std::span<const int> members) override;
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& some) override { return make_subgroup(some); }
  [[nodiscard]] std::unique_ptr<shm_transport> make_subgroup(const subgroup_call& some);

  [[nodiscard]] const std::shared_ptr<shm_host>& shared_host() const noexcept { return shm_.shared_host(); }

 private:
  // In request::state, where shm_messages keeps 0 to 2.
  static constexpr int native_state = 16;

  bool read_posts(control_message& message);
  void tell_gone(int peer, control_message& message) const;

  shm_group shm_;
  shm_messages messages_;
  shm_native native_;
  std::pmr::memory_resource* memory_;
  std::uint32_t news_ = 0;  // the count of control messages when all had been read
  int suspect_ = -1;        // seen to have ended; told at the next poll, when all it left behind has been read
  clock::time_point next_look_{};
};

}}}  // namespace muster::v0::detail
