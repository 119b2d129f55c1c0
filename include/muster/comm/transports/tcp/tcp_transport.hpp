// The tcp transport: the ranks are processes on any hosts.
#pragma once

#include <muster/comm/transport.hpp>

#include <muster/comm/matching/matching_group.hpp>
#include <muster/comm/transports/tcp/connect_tcp.hpp>
#include <muster/comm/transports/tcp/mesh.hpp>
#include <muster/core/descriptor.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A group whose messages use the connections that all groups of a process share. `members`: the world rank of each
/// member. A thread that pauses polls `wake_file` together with the connections.
class tcp_channel final : public matching_group {
 public:
  tcp_channel(std::uint64_t generation, std::vector<int> members, int rank, int world_size);

  void wake() noexcept override;
  /// Returns an eventfd that `wake` makes readable while a thread is asleep.
  [[nodiscard]] int wake_file() const noexcept { return wake_.get(); }
  /// Sets whether a thread is about to poll `wake_file`, or has done so: then clears the file.
  void set_asleep(bool is_asleep) noexcept;

 private:
  descriptor wake_;
  std::atomic<bool> asleep_{false};
};

/// A rank in a group over the process's connections, which all its groups share. Thread safe towards other groups:
/// each call locks the mesh.
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
  void send(request& req) override;
  void receive(request& req) override;
  bool test(request& req) override;
  void cancel(request& req) noexcept override;
  bool replace_buffer(request& req, std::byte* replacement) noexcept override;
  void notify(int peer, const control_message& message) override;
  bool poll(control_message& message) override { return group_.next_control_message(message); }
  void pause(clock::time_point deadline) override;
  /// Starts to connect again to a lost peer, without waiting. Both sides call `reconnect`. Each side keeps the peer's
  /// new messages of the group waiting in the connection until it has itself called `reconnect`, so no message from
  /// before the break is matched with a receive from after the break.
  [[nodiscard]] bool reconnect(int peer, clock::time_point deadline) override;
  [[nodiscard]] link_quality quality(int peer) override;
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& call) override;

  [[nodiscard]] tcp_mesh& mesh() noexcept { return *mesh_; }

 private:
  void begin(request& req, bool receives) noexcept;

  std::shared_ptr<tcp_mesh> mesh_;
  tcp_channel group_;
};

}}}  // namespace muster::v0::detail
