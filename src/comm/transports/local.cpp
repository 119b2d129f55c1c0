#include <muster/comm/transports/local.hpp>

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

namespace muster { inline namespace v0 {
namespace {

// The life of a send, in request::state. Its owner awaits `done`; the thread that sets it touches the request no more.
enum : int { posted, claimed, done };

std::atomic_ref<int> state_of(request& r) { return std::atomic_ref<int>(r.state); }

}  // namespace

// What has been sent to one rank and not been received. Senders leave a pointer to their request; the receiver copies
// straight from the sender's buffer.
struct local_hub::mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<std::uint64_t> events{0};  // raised under the mutex by all that may end a wait of this rank
  detail::request_queue sent;            // `source` is its sender
  std::deque<control_message> control_messages;
  std::atomic<int> notice_count{0};
  bool asleep = false;
};

struct local_hub::family {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<local_hub>> hubs;
};

local_hub::local_hub(int size, std::string_view name) : name_(name), children_(std::make_unique<family>()) {
  if (size < 1) {
    throw configuration_error("a local group cannot have " + std::to_string(size) + " ranks (it needs one at least)");
  }
  for (int i = 0; i < size; ++i) boxes_.push_back(std::make_unique<mailbox>());
}

local_hub::~local_hub() = default;

std::shared_ptr<local_hub> local_hub::child(std::uint64_t id, int size) {
  const std::lock_guard lock(children_->mutex);
  std::erase_if(children_->hubs, [](const auto& entry) { return entry.second.expired(); });
  auto& slot = children_->hubs[id];
  auto hub = slot.lock();
  if (!hub) slot = hub = std::make_shared<local_hub>(size, name_);
  return hub;
}

transport_abilities local_transport::abilities() const {
  return {.name = hub_->name_,
          .any_source = true,
          .moves_buffers = true,
          .concurrent_groups = true,
          .costs = {.latency = 1.0e-6, .per_byte = 1.0e-10, .reduce_per_byte = 0.5e-10}};
}

bool local_transport::oversubscribed() const {
  static const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<unsigned>(size()) > cores;
}

void local_transport::wake(mailbox& to) {  // with its mutex held
  to.events.fetch_add(1, std::memory_order_release);
  if (to.asleep) to.changed.notify_one();
}

void local_transport::send(request& r) {
  r.owner = this;
  r.source = rank_;
  r.state = posted;
  mailbox& to = box(r.peer);
  const std::lock_guard lock(to.mutex);
  to.sent.push(r);
  wake(to);
}

void local_transport::receive(request& r) {
  r.owner = this;
  r.state = posted;
  posted_.push(r);
  matched_at_ = 0;  // what was sent before is searched again
}

// Pairs what was sent with the receives in their order, and copies outside the lock.
void local_transport::match() {
  mailbox& mine = box(rank_);
  const std::uint64_t events = mine.events.load(std::memory_order_acquire);
  seen_ = events;
  if (events == matched_at_) return;
  matched_at_ = events;
  while (!posted_.empty()) {
    request* sent = nullptr;
    request* wanted = nullptr;
    {
      const std::lock_guard lock(mine.mutex);
      wanted = posted_.take_first([&](const request& receive) {
        sent = mine.sent.take_first([&](const request& s) { return detail::matches(receive, s.source, s.tag); });
        return sent != nullptr;
      });
      if (sent == nullptr) return;
      state_of(*sent).store(claimed, std::memory_order_relaxed);
    }
    wanted->owner = nullptr;
    wanted->source = sent->source;
    wanted->received = sent->bytes;
    mailbox& sender = box(sent->source);
    const auto release = [&] {
      state_of(*sent).store(done, std::memory_order_release);
      const std::lock_guard lock(sender.mutex);
      wake(sender);
    };
    try {
      detail::check_arrival(*wanted, sent->source, sent->signature, sent->bytes);
      detail::deliver(*wanted, sent->data, sent->bytes);
    } catch (...) {  // also what a user's reduction throws
      wanted->state = done;
      release();
      throw;
    }
    wanted->state = done;
    release();
  }
}

bool local_transport::test(request& r) {
  match();
  if (state_of(r).load(std::memory_order_acquire) != done) return false;
  r.owner = nullptr;
  return true;
}

void local_transport::cancel(request& r) noexcept {
  r.owner = nullptr;
  if (posted_.remove(r)) return;
  {
    mailbox& to = box(r.peer);
    const std::lock_guard lock(to.mutex);
    if (to.sent.remove(r)) return;
  }
  // A peer copies from the buffer at this moment; it does so without waiting for any other, so this ends.
  while (state_of(r).load(std::memory_order_acquire) == claimed) sched_yield();
}

bool local_transport::move_buffer(request& r, std::byte* to) noexcept {
  if (posted_.contains(r)) {
    r.data = to;
    return true;
  }
  {
    mailbox& there = box(r.peer);
    const std::lock_guard lock(there.mutex);
    if (state_of(r).load(std::memory_order_acquire) == posted) {
      r.data = to;
      return true;
    }
  }
  while (state_of(r).load(std::memory_order_acquire) == claimed) sched_yield();  // as when it is taken back
  return true;
}

void local_transport::notify(int peer, const control_message& message) {
  mailbox& to = box(peer);
  const std::lock_guard lock(to.mutex);
  to.control_messages.push_back(message);
  to.control_messages.back().origin = rank_;
  to.notice_count.fetch_add(1, std::memory_order_release);
  wake(to);
}

bool local_transport::poll(control_message& message) {
  mailbox& mine = box(rank_);
  if (mine.notice_count.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(mine.mutex);
  message = mine.control_messages.front();
  mine.control_messages.pop_front();
  mine.notice_count.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void local_transport::pause(clock::time_point until) {
  mailbox& mine = box(rank_);
  std::unique_lock lock(mine.mutex);
  mine.asleep = true;
  mine.changed.wait_until(lock, until, [&] {
    return mine.events.load(std::memory_order_relaxed) != seen_ || !mine.control_messages.empty();
  });
  mine.asleep = false;
}

std::unique_ptr<transport> local_transport::subgroup(const subgroup_call& some) {
  return std::make_unique<local_transport>(hub_->child(some.id, static_cast<int>(some.members.size())),
                                           some.place_of(rank_));
}

}}  // namespace muster::v0
