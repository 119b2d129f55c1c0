// The start and the progress of a group's calls, by the waiting caller and by the progress thread.
#pragma once

#include <muster/comm/group/group_state.hpp>

#include <sched.h>

#include <algorithm>

#include <muster/comm/comm_timing.hpp>
#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
// The phases of a wait. First the caller spins, for longer than it takes to wake a sleeping thread (30 to 60 us on a
// virtual machine); with shorter spins, two ranks that slept once would keep each other asleep. Then the caller yields
// the core a few times. Then the transport sleeps until something happens. With more ranks than cores the peer may need
// this core, so each spin yields.
inline constexpr int spins_by_the_clock = 64;
inline constexpr int moves_by_the_clock =
    4;  // reading the clock takes about 30 ns, and small collectives finish without it
inline constexpr int yields = 16;

MUSTER_INLINE void run(group& ranks, collective_call&& call) {
  auto& state = *ranks.state();
  const scoped_event measured(activity::communication, to_string(call.kind), call.count * call.element_size);
  const auto held = state.guard();
  state.check_before_call(call.timeout);
  if (state.try_native_fast_path(call)) return;
  operation_state op(state, std::move(call));
  state.enqueue(op);
  state.wait(op, clock::time_point::max());
  if (op.failure) std::rethrow_exception(op.failure);
}

MUSTER_INLINE work start(group& ranks, collective_call&& call, std::unique_ptr<const uneven_pieces> division) {
  auto& state = *ranks.state();
  const auto held = state.guard();
  state.check_before_call(call.timeout);
  void* const memory = state.pool.take(sizeof(operation_state));
  std::unique_ptr<operation_state, operation_release> op(::new (memory) operation_state(state, std::move(call)));
  op->division = std::move(division);
  op->records_times = current_event_sink() != nullptr;
  state.enqueue(*op);
  work handle(ranks.state(), std::move(op));
  state.progress();
  state.hand_to_thread();
  return handle;
}

MUSTER_INLINE void group_state::hand_to_thread() {
  if (queue_.idle() || !may_be_threaded(settings)) return;
  if (!progress_thread_.joinable())
    progress_thread_ = std::jthread([this](const std::stop_token& stop) { run_progress_thread(stop); });
  work_available_.notify_one();
}

// Runs the progress thread. The thread locks the group only while it advances something: a waiting caller advances the
// group itself, and then the progress thread does not get the lock. The thread sleeps outside of the transport, which a
// caller may need in the meantime. The thread does not spin, because another thread computes on that core. A check
// takes several microseconds of that core, also a check that finds the next few packets of a long message. So the
// longer the collective takes, the longer the thread sleeps: a collective that is noticed late has taken at least eight
// times as long as the delay.
MUSTER_INLINE void group_state::run_progress_thread(const std::stop_token& stop) {
  std::uint64_t advanced_sequence = 0;  // sequence number of the collective that `since` belongs to
  auto since = clock::now();
  while (!stop.stop_requested()) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    bool moved = false;
    if (lock.owns_lock()) {
      if (queue_.idle()) {
        work_available_.wait(lock, stop, [this] { return !queue_.idle(); });
        continue;
      }
      moved = progress();
      if (!moved) handle_control_messages();
      check_deadline();
      if (!queue_.empty() && queue_.first().call.sequence != advanced_sequence) {
        advanced_sequence = queue_.first().call.sequence;
        since = clock::now();
      }
      lock.unlock();
    }
    if (moved) continue;
    std::this_thread::sleep_for(
        std::clamp<clock::duration>((clock::now() - since) / 8, group_timing::shortest_nap, group_timing::longest_nap));
  }
}

MUSTER_INLINE bool group_state::progress(operation_state* awaited) {
  try {
    return queue_.progress(settings.check_full, awaited);
  } catch (...) {
    fail(queue_.empty() ? std::current_exception() : with_counts(std::current_exception(), queue_.first().call));
    return true;
  }
}

// Performs one spin; returns false when the wait has spun long enough. Reads the clock only every `spins_by_the_clock`
// spins, or at each spin if a spin may yield the core for long.
MUSTER_INLINE bool group_state::stall::spin(bool oversubscribed) {
  if (spun) return false;
  if (++spins % spins_by_the_clock != 0 && !oversubscribed) return true;
  const auto now = clock::now();
  if (spin_until == clock::time_point{}) spin_until = now + group_timing::spin;
  spun = now >= spin_until;
  return !spun;
}

MUSTER_INLINE bool group_state::wait(operation_state& op, clock::time_point limit) {
  stall stalled;
  unsigned moves = 0;
  while (!op.done) {
    if (progress(&op)) {  // after one message the next may arrive soon
      stalled = {};
      if (++moves % moves_by_the_clock == 0 && !op.done && check_deadline(&op) >= limit) return op.done;
    } else if (stalled.spin(oversubscribed)) {
      if (oversubscribed && transport->should_yield()) sched_yield();
      pause_core();
    } else if (stalled.yields < yields) {
      ++stalled.yields;
      sched_yield();
    } else {
      try {
        if (!wait_slowly(op, limit, stalled)) return false;
      } catch (...) {
        fail(std::current_exception());
      }
    }
  }
  record_end(op);
  return true;
}

// Performs one turn of a long wait: handles control messages and deadlines, then sleeps. Returns false when the limit
// is reached.
MUSTER_INLINE bool group_state::wait_slowly(operation_state& op, clock::time_point limit, stall& stalled) {
  handle_control_messages();
  const auto now = check_deadline(&op);
  if (queue_.idle()) return true;  // a control message or the deadline has ended all calls
  if (now >= limit) return false;
  if (const std::uint32_t requested = flight_records_requested;
      std::exchange(records_requested_, requested) != requested)
    write_flight_record(0, "SIGUSR2 asked for it");
  auto until = limit;
  if (op.is_message && !op.done) until = std::min(until, check_message(op, now));
  if (queue_.empty()) {
    if (end) until = std::min(until, now + group_timing::revocable_pause);
    if (!queue_.idle()) transport->pause(until);
    return true;
  }
  if (now >= stalled.next_report) failures_.publish_position(queue_.first().call);
  if (now >= stalled.next_report || stalled.next_report == clock::time_point::max()) {
    stalled.report_interval = stalled.report_interval == seconds(0)
                                  ? std::min(group_timing::first_position_report, queue_.first().call.timeout / 4)
                                  : std::min(stalled.report_interval * 2, group_timing::longest_position_interval);
    stalled.next_report = deadline_after(stalled.report_interval);
  }
  until = std::min({until, stalled.next_report, queue_.first().deadline});
  if (end) until = std::min(until, now + group_timing::revocable_pause);
  if (const auto* const left = failures_.find_leaver()) until = std::min(until, left->until);
  transport->pause(until);
  return true;
}

MUSTER_INLINE clock::time_point group_state::check_deadline(operation_state* awaited) noexcept {
  const auto now = clock::now();
  if (awaited != nullptr && awaited->is_message && !awaited->done) {
    try {
      check_message(*awaited, now);
    } catch (...) {
      fail(std::current_exception());
    }
  }
  if (queue_.empty() || !queue_.first().begun) return now;
  operation_state& op = queue_.first();
  if (op.deadline == clock::time_point::max()) {
    op.deadline = deadline_after(op.call.timeout);
    failures_.calls().began(op.call.sequence, now);
  }
  if (now < op.deadline) return now;
  try {
    failures_.throw_timeout(op.call, op.call.timeout);
  } catch (...) {
    fail(std::current_exception());
  }
  return now;
}

}}}  // namespace muster::v0::detail
