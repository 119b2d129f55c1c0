// Ranks on any hosts as processes, over TCP.
#pragma once

#include <muster/comm/transport.hpp>

#include "connect.hpp"
#include "mesh.hpp"

namespace muster::inline v0::detail {

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
  void send(request& r) override {
    r.owner = this;
    mesh_->send(group_, r);
  }
  void receive(request& r) override {
    r.owner = this;
    mesh_->receive(group_, r);
  }
  bool test(request& r) override { return mesh_->test(group_, r); }
  void cancel(request& r) noexcept override { mesh_->cancel(group_, r); }
  bool move_buffer(request& r, std::byte* to) noexcept override { return mesh_->move_buffer(group_, r, to); }
  void notify(int peer, const control_message& message) override { mesh_->notify(group_, peer, message); }
  bool poll(control_message& message) override { return group_.hear(message); }
  void pause(clock::time_point until) override { mesh_->pause(group_, until); }
  [[nodiscard]] bool renew(int peer, clock::time_point until) override { return mesh_->renew(group_, peer, until); }
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& some) override;

  [[nodiscard]] tcp_mesh& mesh() noexcept { return *mesh_; }

 private:
  std::shared_ptr<tcp_mesh> mesh_;
  tcp_channel group_;
};

}  // namespace muster::inline v0::detail
