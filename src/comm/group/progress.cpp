// How a group begins its calls and moves them on: the caller that waits, and the progress thread.
#include <sched.h>

#include <algorithm>

#include <muster/core/events.hpp>

#include "../timing.hpp"
#include "group_state.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// Waiting: tests back to back for longer than it takes to wake a thread that sleeps (30 to 60 us on a virtual machine),
// or two ranks that once slept would keep each other asleep; then the processor is offered to others a few times, and
// then the transport sleeps until something happens. With more ranks than cores the peer we wait for may need this very
// core: then each turn offers it.
constexpr int spins_by_the_clock = 64;
constexpr int moves_by_the_clock = 4;  // a look costs some 30 ns, and so small collectives get by without one
constexpr int yields = 16;

}  // namespace

// ---- calls ----

void run(group& ranks, collective_call&& what) {
  auto& state = *ranks.state();
  const scoped_event measured(activity::communication, to_string(what.kind), what.count * what.element_size);
  const auto held = state.guard();
  state.enter(what.timeout);
  if (state.run_at_once(what)) return;
  operation_state op(state, std::move(what));
  state.enqueue(op);
  state.wait(op, clock::time_point::max());
  if (op.failure) std::rethrow_exception(op.failure);
}

work start(group& ranks, collective_call&& what) {
  auto& state = *ranks.state();
  const auto held = state.guard();
  state.enter(what.timeout);
  void* const memory = state.pool.take(sizeof(operation_state));
  std::unique_ptr<operation_state, operation_release> op(::new (memory) operation_state(state, std::move(what)));
  op->timed = current_event_sink() != nullptr;
  state.enqueue(*op);
  work handle(ranks.state(), std::move(op));
  state.progress();
  state.hand_to_thread();
  return handle;
}

// ---- the progress thread ----

void group_state::hand_to_thread() {
  if (queue_.empty() || !may_be_threaded(settings)) return;
  if (!driver_.joinable()) driver_ = std::jthread([this](const std::stop_token& stop) { drive(stop); });
  work_there_.notify_one();
}

// It holds the group only for as long as it moves something: a caller that waits drives by itself, and then this thread
// stands back. It sleeps by itself and not in the transport, which a caller may need in the meantime; and it does not
// spin, for another thread computes on that core. A look costs several microseconds of that core, also one that finds
// the next few packets of a long message, so the longer the collective takes, the longer it sleeps: what is found so
// late took eight times as long at least.
void group_state::drive(const std::stop_token& stop) {
  std::uint64_t looked_after = 0;  // a collective's sequence number
  auto since = clock::now();
  while (!stop.stop_requested()) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    bool moved = false;
    if (lock.owns_lock()) {
      if (queue_.empty()) {
        work_there_.wait(lock, stop, [this] { return !queue_.empty(); });
        continue;
      }
      moved = progress();
      if (!moved) poll_notices();
      check_deadline();
      if (!queue_.empty() && queue_.first().what.sequence != looked_after) {
        looked_after = queue_.first().what.sequence;
        since = clock::now();
      }
      lock.unlock();
    }
    if (moved) continue;
    std::this_thread::sleep_for(
        std::clamp<clock::duration>((clock::now() - since) / 8, group_timing::shortest_nap, group_timing::longest_nap));
  }
}

bool group_state::progress() {
  try {
    return queue_.progress(settings.check_full);
  } catch (...) {
    fail(std::current_exception());
    return true;
  }
}

// One turn of spinning; false when that has lasted long enough. Looks at the clock now and then only, or each time
// where a turn may give the core away for long.
bool group_state::stall::spin(bool oversubscribed) {
  if (spun) return false;
  if (++spins % spins_by_the_clock != 0 && !oversubscribed) return true;
  const auto now = clock::now();
  if (spin_until == clock::time_point{}) spin_until = now + group_timing::spin;
  spun = now >= spin_until;
  return !spun;
}

bool group_state::wait(operation_state& op, clock::time_point limit) {
  stall stalled;
  unsigned moves = 0;
  while (!op.done) {
    if (progress()) {  // where one message came the next may be close
      stalled = {};
      if (++moves % moves_by_the_clock == 0 && !op.done && check_deadline() >= limit) return op.done;
    } else if (stalled.spin(oversubscribed)) {
      if (oversubscribed && transport->should_yield()) sched_yield();
      pause_core();
    } else if (stalled.yields < yields) {
      ++stalled.yields;
      sched_yield();
    } else {
      try {
        if (!rest(limit, stalled)) return false;
      } catch (...) {
        fail(std::current_exception());
      }
    }
  }
  if (op.deadline != clock::time_point::max()) peers_.calls().ended(op.what.sequence, clock::now());
  return true;
}

// One turn of a wait that takes longer: news, deadlines, and then sleep. False when the limit is reached.
bool group_state::rest(clock::time_point limit, stall& stalled) {
  poll_notices();
  const auto now = check_deadline();
  if (queue_.empty()) return true;  // a control message or the deadline has ended all
  if (now >= limit) return false;
  if (const std::uint32_t asked = flight_records_asked_for; std::exchange(records_asked_for_, asked) != asked)
    write_flight_record(0, "SIGUSR2 asked for it");
  if (now >= stalled.inquiry) peers_.tell_position(queue_.first().what);
  if (now >= stalled.inquiry || stalled.inquiry == clock::time_point::max()) {
    stalled.pause = stalled.pause == seconds(0) ? std::min(group_timing::first_inquiry, queue_.first().what.timeout / 4)
                                                : std::min(stalled.pause * 2, group_timing::last_inquiry);
    stalled.inquiry = deadline_after(stalled.pause);
  }
  auto until = std::min({limit, stalled.inquiry, queue_.first().deadline});
  if (end) until = std::min(until, now + group_timing::revocable_pause);
  if (const auto* const left = peers_.find_leaver()) until = std::min(until, left->until);
  transport->pause(until);
  return true;
}

clock::time_point group_state::check_deadline() noexcept {
  const auto now = clock::now();
  if (queue_.empty() || !queue_.first().begun) return now;
  operation_state& op = queue_.first();
  if (op.deadline == clock::time_point::max()) {
    op.deadline = deadline_after(op.what.timeout);
    peers_.calls().began(op.what.sequence, now);
  }
  if (now < op.deadline) return now;
  try {
    peers_.time_out(op.what, op.what.timeout);
  } catch (...) {
    fail(std::current_exception());
  }
  return now;
}

}}}  // namespace muster::v0::detail
