// Ranks on any hosts as processes, over TCP.
#pragma once

#include <muster/comm/transport.hpp>

#include "../../../core/descriptor.hpp"
#include "../../matching/group.hpp"
#include "connect.hpp"
#include "mesh.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// One group over the connections that a process's groups share: its peers are the ranks of the world. A thread that
/// pauses waits for `wake_file` beside the connections.
class tcp_channel final : public matching_group {
 public:
  tcp_channel(std::uint64_t generation, std::vector<int> members, int rank, int world_size);

  void wake() noexcept override;
  [[nodiscard]] int wake_file() const noexcept { return wake_.get(); }
  void set_asleep(bool yes) noexcept;

 private:
  descriptor wake_;
  std::atomic<bool> asleep_{false};
};

/// One rank of a group over the connections of its process, which all its groups share.
class tcp_transport final : public transport {
 public:
  tcp_transport(std::shared_ptr<tcp_mesh> mesh, std::vector<int> members, int rank, std::uint64_t generation)
      : mesh_(std::move(mesh)), group_(generation, std::move(members), rank, mesh_->size()) {
    mesh_->open(group_);
  }
  ~tcp_transport() override { mesh_->close(group_); }

  [[nodiscard]] int rank() const override { return group_.rank(); }
  [[nodiscard]] int size() const override { return group_.size(); }
  [[nodiscard]] transport_abilities abilities() const override {
    return tcp_abilities_with(mesh_->most_ranks_a_core());
  }
  [[nodiscard]] bool oversubscribed() const override { return mesh_->oversubscribed(); }
  void send(request& r) override;
  void receive(request& r) override;
  bool test(request& r) override;
  void cancel(request& r) noexcept override;
  bool move_buffer(request& r, std::byte* to) noexcept override;
  void notify(int peer, const control_message& message) override;
  bool poll(control_message& message) override { return group_.hear(message); }
  void pause(clock::time_point until) override;
  /// Both sides connect, and each takes nothing that the other sends in the group until it has renewed it itself: so
  /// nothing of before the break meets anything of after it.
  [[nodiscard]] bool renew(int peer, clock::time_point until) override;
  [[nodiscard]] link_quality quality(int peer) override;
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& some) override;

  [[nodiscard]] tcp_mesh& mesh() noexcept { return *mesh_; }

 private:
  void begin(request& r, bool receives) noexcept;

  std::shared_ptr<tcp_mesh> mesh_;
  tcp_channel group_;
};

}}}  // namespace muster::v0::detail
