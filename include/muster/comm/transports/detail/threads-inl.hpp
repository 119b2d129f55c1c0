// The transport between the threads of a process: the ranks of a group are threads (`--transport threads`).
//
// Each rank has a mailbox in the hub. A sender queues its request there, and the receiver copies from the buffer in the
// request. A sender waits until the receiver has copied, so no message needs memory in between.
#pragma once

#include <muster/comm/transports/threads.hpp>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// The states of a send, in request::state. The sender waits for `done`. The thread that sets `done` does not
// touch the request afterwards.
struct send_state {
  enum : int { posted, claimed, done };
};

inline std::atomic_ref<int> state_of(request& req) { return std::atomic_ref<int>(req.state); }

}  // namespace detail

// The messages that were sent to one rank and are not received yet. A sender queues a pointer to its request, and the
// receiver copies directly from the sender's buffer. The mutex guards all fields except the two atomics.
struct thread_hub::mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<std::uint64_t> events{0};  // incremented under the mutex by each event that may end this rank's wait
  // The senders' requests; `source` is the rank of the sender.
  detail::request_queue arrived;                 // messages that were not compared with the posted receives
  detail::request_table sent{&request::source};  // messages without a receive
  std::deque<control_message> control_messages;
  std::atomic<int> control_message_count{0};
  bool asleep = false;  // set while the rank sleeps in `pause`
};

struct thread_hub::subgroup_hubs {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<thread_hub>> hubs;
};

MUSTER_INLINE thread_hub::thread_hub(int rank_count, std::string_view name)
    : name_(name), children_(std::make_unique<subgroup_hubs>()) {
  if (rank_count < 1) {
    throw configuration_error("a local group cannot have " + std::to_string(rank_count) +
                              " ranks (it needs at least one); pass a positive size");
  }
  for (int i = 0; i < rank_count; ++i) boxes_.push_back(std::make_unique<mailbox>());
}

MUSTER_INLINE thread_hub::~thread_hub() = default;

MUSTER_INLINE std::shared_ptr<thread_hub> thread_hub::subgroup_hub(std::uint64_t group_id, int rank_count) {
  const std::lock_guard lock(children_->mutex);
  std::erase_if(children_->hubs, [](const auto& entry) { return entry.second.expired(); });
  auto& slot = children_->hubs[group_id];
  auto hub = slot.lock();
  if (!hub) slot = hub = std::make_shared<thread_hub>(rank_count, name_);
  return hub;
}

MUSTER_INLINE transport_abilities thread_transport::abilities() const {
  return {.name = hub_->name_,
          .any_source = true,
          .replaces_buffers = true,
          .concurrent_groups = true,
          .costs = {.latency = 1.0e-6, .per_byte = 1.0e-10, .reduce_per_byte = 0.5e-10}};
}

MUSTER_INLINE bool thread_transport::oversubscribed() const {
  static const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<unsigned>(size()) > cores;
}

MUSTER_INLINE void thread_transport::wake(mailbox& destination) {  // called with the mutex of `destination` held
  destination.events.fetch_add(1, std::memory_order_release);
  if (destination.asleep) destination.changed.notify_one();
}

MUSTER_INLINE void thread_transport::send(request& req) {
  req.owner = this;
  req.source = rank_;
  req.state = detail::send_state::posted;
  mailbox& destination = box(req.peer);
  const std::lock_guard lock(destination.mutex);
  destination.arrived.push(req);
  wake(destination);
}

MUSTER_INLINE void thread_transport::receive(request& req) {
  req.owner = this;
  req.state = detail::send_state::posted;
  new_receives_.push(req);
}

MUSTER_INLINE void thread_transport::finish_receive(request& received, const request& sent) {
  received.owner = nullptr;
  received.source = sent.source;
  received.received = sent.bytes;
}

// A new receive takes the first message among the earlier ones, and a new message the first receive.
MUSTER_INLINE thread_transport::matched thread_transport::next_match(mailbox& mine) {
  const auto any = [](const request&) { return true; };
  const auto first_for = [&](const request& received) {
    if (received.peer != any_source) return mine.sent.find(received.peer, received.tag, any);
    request* first = nullptr;
    for (int from = 0; from < size(); ++from) {
      request* const sent = mine.sent.find(from, received.tag, any);
      if (sent != nullptr && (first == nullptr || sent->order < first->order)) first = sent;
    }
    return first;
  };
  const auto finish_peek = [](request& received, const request& sent) {
    finish_receive(received, sent);
    received.state = detail::send_state::done;
  };
  while (request* const received = new_receives_.front()) {
    new_receives_.remove(*received);
    request* const sent = first_for(*received);
    if (sent == nullptr) {
      posted_.push(*received);
    } else if (received->peeks) {
      finish_peek(*received, *sent);
    } else {
      mine.sent.remove(*sent);
      return {sent, received};
    }
  }
  while (request* const sent = mine.arrived.front()) {
    mine.arrived.remove(*sent);
    const auto find = [&](bool peeks) {
      return posted_.find_receive(sent->source, sent->tag, [&](const request& r) { return r.peeks == peeks; });
    };
    if (request* const received = find(false)) {
      posted_.remove(*received);
      return {sent, received};
    }
    while (request* const peek = find(true)) {
      posted_.remove(*peek);
      finish_peek(*peek, *sent);
    }
    mine.sent.push(*sent);
  }
  return {};
}

// Matches messages with receives in order, and copies without holding the mutex.
MUSTER_INLINE void thread_transport::match() {
  mailbox& mine = box(rank_);
  const std::uint64_t events = mine.events.load(std::memory_order_acquire);
  events_at_last_test_ = events;
  if (posted_.empty() && new_receives_.empty()) return;  // messages wait for a receive, and a sender takes no lock
  if (events == events_at_last_match_ && new_receives_.empty()) return;
  events_at_last_match_ = events;
  for (;;) {
    matched pair;
    {
      const std::lock_guard lock(mine.mutex);
      pair = next_match(mine);
      if (pair.sent == nullptr) return;
      detail::state_of(*pair.sent).store(detail::send_state::claimed, std::memory_order_relaxed);
    }
    request* const sent = pair.sent;
    request* const receive_request = pair.received;
    finish_receive(*receive_request, *sent);
    mailbox& sender = box(sent->source);
    const auto release = [&] {
      detail::state_of(*sent).store(detail::send_state::done, std::memory_order_release);
      const std::lock_guard lock(sender.mutex);
      wake(sender);
    };
    try {
      detail::check_arrival(*receive_request, sent->source, sent->signature, sent->bytes);
      detail::deliver(*receive_request, sent->data, sent->bytes);
    } catch (...) {  // includes exceptions from a user's reduction
      receive_request->state = detail::send_state::done;
      release();
      throw;
    }
    receive_request->state = detail::send_state::done;
    release();
  }
}

MUSTER_INLINE bool thread_transport::test(request& req) {
  match();
  if (detail::state_of(req).load(std::memory_order_acquire) != detail::send_state::done) return false;
  req.owner = nullptr;
  return true;
}

MUSTER_INLINE void thread_transport::cancel(request& req) noexcept {
  req.owner = nullptr;
  if (posted_.remove(req) || new_receives_.remove(req)) return;
  {
    mailbox& destination = box(req.peer);
    const std::lock_guard lock(destination.mutex);
    if (destination.sent.remove(req) || destination.arrived.remove(req)) return;
  }
  // A peer is copying from the buffer. The peer waits for no other rank meanwhile, so this loop ends.
  while (detail::state_of(req).load(std::memory_order_acquire) == detail::send_state::claimed) sched_yield();
}

MUSTER_INLINE bool thread_transport::replace_buffer(request& req, std::byte* replacement) noexcept {
  if (posted_.contains(req) || new_receives_.contains(req)) {
    req.data = replacement;
    return true;
  }
  {
    mailbox& receiver_box = box(req.peer);
    const std::lock_guard lock(receiver_box.mutex);
    if (detail::state_of(req).load(std::memory_order_acquire) == detail::send_state::posted) {
      req.data = replacement;
      return true;
    }
  }
  while (detail::state_of(req).load(std::memory_order_acquire) == detail::send_state::claimed)
    sched_yield();  // as in `cancel`
  return true;
}

MUSTER_INLINE void thread_transport::notify(int peer, const control_message& message) {
  mailbox& destination = box(peer);
  const std::lock_guard lock(destination.mutex);
  destination.control_messages.push_back(message);
  destination.control_messages.back().origin = rank_;
  destination.control_message_count.fetch_add(1, std::memory_order_release);
  wake(destination);
}

MUSTER_INLINE bool thread_transport::poll(control_message& message) {
  mailbox& mine = box(rank_);
  if (mine.control_message_count.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(mine.mutex);
  message = mine.control_messages.front();
  mine.control_messages.pop_front();
  mine.control_message_count.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

MUSTER_INLINE void thread_transport::pause(clock::time_point deadline) {
  mailbox& mine = box(rank_);
  std::unique_lock lock(mine.mutex);
  mine.asleep = true;
  mine.changed.wait_until(lock, deadline, [&] {
    return mine.events.load(std::memory_order_relaxed) != events_at_last_test_ || !mine.control_messages.empty();
  });
  mine.asleep = false;
}

MUSTER_INLINE std::unique_ptr<transport> thread_transport::subgroup(const subgroup_call& call) {
  return std::make_unique<thread_transport>(hub_->subgroup_hub(call.id, static_cast<int>(call.members.size())),
                                            call.new_rank_of(rank_));
}

}}  // namespace muster::v0
