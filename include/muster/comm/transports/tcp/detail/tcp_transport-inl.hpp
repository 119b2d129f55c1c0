#pragma once

#include <muster/comm/transports/tcp/tcp_transport.hpp>

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <muster/comm/transports/tcp/link_quality.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
// value for a receive, or a send to this rank or to a lost rank
inline constexpr std::uint32_t no_connection = ~std::uint32_t{0};

MUSTER_INLINE tcp_channel::tcp_channel(std::uint64_t generation, std::vector<int> members, int rank, int world_size)
    : matching_group(generation, std::move(members), rank, world_size),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!wake_) throw std::system_error(errno, std::generic_category(), "no eventfd for a group");
}

MUSTER_INLINE void tcp_channel::wake() noexcept {
  if (!asleep_.load()) return;
  const std::uint64_t increment = 1;
  (void)!::write(wake_.get(), &increment, sizeof increment);
}

MUSTER_INLINE void tcp_channel::set_asleep(bool is_asleep) noexcept {
  asleep_.store(is_asleep);
  if (is_asleep) return;
  std::uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);
}

MUSTER_INLINE void tcp_transport::begin(request& req, bool receives) noexcept {
  req.owner = this;
  req.state = message_progress::waiting;
  ::new (req.transport_storage) message_progress{
      .group = &group_, .group_id = group_.group_id(), .connection = no_connection, .receives = receives};
  if (req.signature.kind == collective::none || req.signature.sequence < group_.started_collectives) return;
  group_.started_collectives = req.signature.sequence + 1;
  mesh_->position_.generation = group_.group_id();
  mesh_->position_.signature = req.signature;
}

MUSTER_INLINE link_quality tcp_transport::quality(int peer) {
  const std::lock_guard lock(mesh_->mutex_);  // keeps the connection open during the call
  const int world_rank = group_.peer(peer);
  return world_rank != mesh_->rank_ && mesh_->link(world_rank).connected() ? quality_of(mesh_->link(world_rank).file())
                                                                           : link_quality();
}

MUSTER_INLINE void tcp_transport::send(request& req) {
  const std::lock_guard lock(mesh_->mutex_);
  begin(req, false);
  const int peer = group_.peer(req.peer);
  if (peer == mesh_->rank_) {
    const envelope head{.signature = req.signature, .total = req.bytes, .group_id = group_.group_id(), .tag = req.tag};
    mesh_->messages_.deliver_own(peer, head, req);
    end(req);
    return;
  }
  if (group_.has_ended(req.peer)) return;
  progress_of(req).connection = mesh_->link(peer).number();
  mesh_->link(peer).send(req);
  if (!mesh_->link(peer).connected()) mesh_->manager_.request_connection(peer);
}

MUSTER_INLINE void tcp_transport::receive(request& req) {
  const std::lock_guard lock(mesh_->mutex_);
  begin(req, true);
  mesh_->messages_.post(req);  // the next test sends the clear-to-send, perhaps together with others
  if (req.peer == any_source || req.peer == group_.rank()) return;
  const int peer = group_.peer(req.peer);
  if (!mesh_->link(peer).connected()) mesh_->manager_.request_connection(peer);
}

MUSTER_INLINE bool tcp_transport::test(request& req) {
  const std::lock_guard lock(mesh_->mutex_);
  if (req.owner != nullptr && !group_.failure) mesh_->progress();
  group_.finished_at_last_test = group_.finished;
  if (group_.failure) std::rethrow_exception(std::exchange(group_.failure, nullptr));
  return req.owner == nullptr;
}

MUSTER_INLINE void tcp_transport::cancel(request& req) noexcept {
  const std::lock_guard lock(mesh_->mutex_);
  if (req.owner == nullptr) return;
  const auto& p = progress_of(req);
  if (!p.receives) {
    auto& link = mesh_->link(group_.peer(req.peer));
    if (p.connection == link.number()) {
      link.cancel_send(req);
    } else {  // the connection of the send no longer exists
      req.owner = nullptr;
    }
  } else {
    mesh_->messages_.cancel(req);
  }
}

MUSTER_INLINE bool tcp_transport::replace_buffer(request& req, std::byte* replacement) noexcept {
  const std::lock_guard lock(mesh_->mutex_);
  if (req.owner == nullptr) return false;
  if (!progress_of(req).receives) mesh_->link(group_.peer(req.peer)).move_send(req, replacement);
  req.data = replacement;
  return true;
}

MUSTER_INLINE void tcp_transport::notify(int member, const control_message& message) {
  frame head;
  head.kind = frame_kind::control_message;
  head.generation = group_.group_id();
  const int peer = group_.peer(member);
  const bool is_required = message.type != control_message::kind::position;
  mesh_->manager_.send_control_frame(peer, head, encode_control_message(message), is_required);
  if (mesh_->plan_.lazy && is_required) mesh_->manager_.request_connection(peer);
}

MUSTER_INLINE void tcp_transport::pause(clock::time_point deadline) {
  thread_local std::vector<pollfd> files;
  files.clear();
  files.push_back({group_.wake_file(), POLLIN, 0});
  {
    const std::lock_guard lock(mesh_->mutex_);
    group_.set_asleep(true);
    if (group_.finished != group_.finished_at_last_test) deadline = {};
    for (const auto& peer : mesh_->peers_) {
      const int events = (peer.link->can_read() ? POLLIN : 0) | (peer.link->has_output() ? POLLOUT : 0);
      if (events != 0) files.push_back({peer.link->file(), static_cast<short>(events), 0});
    }
  }
  if (group_.unread_control_messages() == 0) {
    const auto remaining = std::max(deadline - clock::now(), clock::duration::zero());
    const auto seconds_part = std::chrono::floor<std::chrono::seconds>(remaining);
    const timespec span{static_cast<time_t>(seconds_part.count()),
                        static_cast<long>(std::chrono::nanoseconds(remaining - seconds_part).count())};
    ::ppoll(files.data(), files.size(), &span, nullptr);
  }
  group_.set_asleep(false);
}

MUSTER_INLINE bool tcp_transport::reconnect(int member, clock::time_point deadline) {
  const std::lock_guard lock(mesh_->mutex_);
  const int peer = group_.peer(member);
  const tcp_mesh::peer_state& peer_state = mesh_->state(peer);
  if (!group_.has_ended(member) || peer_state.lost_reason.empty() || peer_state.departed) return false;
  if (peer_state.disconnected) {
    if (!peer_state.link->was_established()) return false;  // a renewal was already tried
    mesh_->replace_link(peer);
    mesh_->manager_.request_connection(peer, deadline);
  }
  mesh_->messages_.drop_unexpected_of(peer, group_.group_id());
  group_.ended_members[static_cast<std::size_t>(member)] = false;
  return true;
}

// Every member knows the other members, and frames carry the group's id: the members have to agree on nothing.
MUSTER_INLINE std::unique_ptr<transport> tcp_transport::subgroup(const subgroup_call& call) {
  std::vector<int> world_ranks;
  for (const int member : call.members) world_ranks.push_back(group_.peer(member));
  return std::make_unique<tcp_transport>(mesh_, std::move(world_ranks), call.new_rank_of(rank()), call.id);
}

}}}  // namespace muster::v0::detail
