#pragma once

#include <muster/comm/transports/shm/shm_transport.hpp>

#include <muster/comm/comm_timing.hpp>
#include <muster/comm/transports/shm/connect_shm.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {

MUSTER_INLINE shm_transport::shm_transport(std::shared_ptr<shm_host> host, std::vector<int> members, int rank,
                                           std::span<const std::uint64_t> slots)
    : shm_(std::move(host), std::move(members), rank, slots),
      messages_(shm_),
      native_(shm_),
      memory_(&shm_.host().own()) {}

MUSTER_INLINE transport_abilities shm_transport::abilities() const {
  auto result = shm_abilities;
  result.detects_death = shm_.host().sees_death();
  return result;
}

MUSTER_INLINE bool shm_transport::native(const collective_call& call, request& req) {
  req.state = native_state;
  req.owner = this;  // set before the start, so that the caller cancels the request if the start throws
  const auto started = native_.start(call);
  if (started != shm_native::start_result::pending) req.owner = nullptr;
  return started != shm_native::start_result::unsupported;
}

MUSTER_INLINE void shm_transport::cancel(request& req) noexcept {
  if (req.state == native_state) {
    req.owner = nullptr;
    native_.cancel();
  } else {
    messages_.cancel(req);
  }
}

MUSTER_INLINE bool shm_transport::replace_buffer(request& req, std::byte* replacement) noexcept {
  if (req.state == native_state) return false;
  req.data = replacement;
  return true;
}

MUSTER_INLINE void shm_transport::notify(int peer, const control_message& message) {
  control_mailbox& mailbox = shm_.mailboxes(rank(), peer);
  const std::uint64_t written = mailbox.written.load(std::memory_order_relaxed);
  const std::uint64_t unread = written - mailbox.read.load(std::memory_order_acquire);
  // A position message is soon obsolete, so it may be dropped. The last place in the mailbox is reserved for the
  // message about this rank's end.
  if (unread >= control_mailbox::capacity ||
      (unread + 1 >= control_mailbox::capacity && message.type == control_message::kind::position))
    return;
  control_message& slot = mailbox.ring[written % control_mailbox::capacity];
  slot = message;
  slot.origin = rank();
  mailbox.written.store(written + 1, std::memory_order_release);
  shm_.slot(peer).control_messages.fetch_add(1, std::memory_order_release);
  shm_.wake(peer);
}

MUSTER_INLINE bool shm_transport::read_mailboxes(control_message& message) {
  for (int sender = 0; sender < size(); ++sender) {
    control_mailbox& mailbox = shm_.mailboxes(sender, rank());
    const std::uint64_t read = mailbox.read.load(std::memory_order_relaxed);
    if (mailbox.written.load(std::memory_order_acquire) == read) continue;
    message = mailbox.ring[read % control_mailbox::capacity];
    message.origin = sender;  // the sender's own field is not trusted
    message.text[sizeof message.text - 1] = '\0';
    mailbox.read.store(read + 1, std::memory_order_release);
    return true;
  }
  return false;
}

MUSTER_INLINE void shm_transport::describe_ended_peer(int peer, control_message& message) const {
  const auto process = std::to_string(shm_.host().process(shm_.host_rank(peer)));
  message = control_message::rank_ended(
      peer, "rank " + std::to_string(shm_.reported_rank(peer)) + " is gone (its process " + process +
                " ended before it finished the group's collectives); see the output of its launcher");
}

MUSTER_INLINE bool shm_transport::poll(control_message& message) {
  const std::uint32_t sent = shm_.mine().control_messages.load(std::memory_order_acquire);
  if (sent == control_messages_seen_ && ended_peer_ < 0) return false;
  // An ended peer is reported before the control messages of other ranks: the end is the more precise reason for a
  // failure.
  if (ended_peer_ < 0) ended_peer_ = shm_.find_ended_peer();
  if (ended_peer_ >= 0) {
    describe_ended_peer(std::exchange(ended_peer_, -1), message);
    return true;
  }
  if (read_mailboxes(message)) return true;
  control_messages_seen_ = sent;
  return false;
}

MUSTER_INLINE void shm_transport::pause(clock::time_point deadline) {
  shm_.wait(deadline);
  check_for_ended_peers();
}

MUSTER_INLINE void shm_transport::check_for_ended_peers() {
  const auto now = clock::now();
  if (ended_peer_ >= 0 || now < next_check_) return;
  next_check_ = now + transport_timing::death_poll;
  ended_peer_ = shm_.find_ended_peer();
}

MUSTER_INLINE std::uint64_t shm_transport::prepare(std::span<const int> members) {
  shm_.host().release_retired(false);
  return shm_group::allocate_slot(shm_.host().own(), static_cast<int>(members.size()));
}

MUSTER_INLINE std::unique_ptr<shm_transport> shm_transport::make_subgroup(const subgroup_call& call) {
  std::vector<std::uint64_t> slots;
  std::vector<int> on_host;
  for (const int member : call.members) {
    slots.push_back(call.prepared[static_cast<std::size_t>(member)]);
    on_host.push_back(shm_.host_rank(member));
  }
  return std::make_unique<shm_transport>(shm_.shared_host(), std::move(on_host), call.new_rank_of(rank()), slots);
}

}}}  // namespace muster::v0::detail
