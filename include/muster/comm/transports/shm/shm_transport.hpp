// The shm transport: the ranks are processes on a host and communicate over shared memory.
#pragma once

#include <muster/comm/transport.hpp>

#include <muster/comm/transports/shm/messages.hpp>
#include <muster/comm/transports/shm/native.hpp>
#include <muster/comm/transports/shm/shm_group.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A rank in a group whose ranks are processes on the same host. Used by one thread at a time.
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
  void send(request& req) override { messages_.send(req, *this); }
  void receive(request& req) override { messages_.receive(req, *this); }
  bool native(const collective_call& call, request& req) override;
  bool test(request& req) override {
    if (req.state != native_state) return messages_.test(req);
    if (messages_.has_unfinished()) messages_.progress();
    return native_.test(req);
  }
  void cancel(request& req) noexcept override;
  bool replace_buffer(request& req, std::byte* replacement) noexcept override;
  void notify(int peer, const control_message& message) override;
  bool poll(control_message& message) override;
  void pause(clock::time_point deadline) override;
  /// Checks from time to time, while a rank waits, whether a peer has ended. The next `poll` reports the peer.
  void check_for_ended_peers();
  /// See `shm_group::reported_rank`.
  void set_reported_ranks(std::vector<int> ranks) noexcept { shm_.set_reported_ranks(std::move(ranks)); }
  /// Allocates this rank's slot for a group with those members and returns the slot's offset.
  [[nodiscard]] std::uint64_t prepare(std::span<const int> members) override;
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& call) override { return make_subgroup(call); }
  [[nodiscard]] std::unique_ptr<shm_transport> make_subgroup(const subgroup_call& call);

  [[nodiscard]] const std::shared_ptr<shm_host>& shared_host() const noexcept { return shm_.shared_host(); }

 private:
  // Value of request::state for a native collective. shm_messages uses the values 0
  // to 2.
  static constexpr int native_state = 16;

  bool read_mailboxes(control_message& message);
  void describe_ended_peer(int peer, control_message& message) const;

  shm_group shm_;
  shm_messages messages_;
  shm_native native_;
  std::pmr::memory_resource* memory_;
  std::uint32_t control_messages_seen_ = 0;  // value of `slot_head::control_messages` when all messages had been read
  // a peer that has ended; reported by the next `poll`, after all messages that the peer left are read
  int ended_peer_ = -1;
  clock::time_point next_check_{};
};

}}}  // namespace muster::v0::detail
