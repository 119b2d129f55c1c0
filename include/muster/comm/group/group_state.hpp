// The implementation of a group: starts its calls, waits for them with a deadline, and fails by the failure protocol.
//
// A call is appended to `queue_` and gets its sequence number. The first call of the queue runs, the others wait. Two
// parties advance the queue: a caller that waits, and the progress thread. With a progress thread both hold `mutex_`
// while they do. A failure fails all calls of the queue with the same error.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <muster/comm/algorithms/chooser.hpp>

#include <muster/comm/group/failure_protocol.hpp>
#include <muster/comm/group/operation.hpp>
#include <muster/comm/group/revocation.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Pauses the core between two reads of a cache line. Without a pause the reads take the cache line from the core that
/// is about to write it, and the shortest call over shm takes a tenth longer.
inline void pause_core() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// The implementation of a group, shared by the group's handle, its works and its child groups.
class group_state {
 public:
  /// `parent` is the group that this group was made from. `group_id` is the same at all ranks. `end` lets another
  /// thread end this group and all groups that are made from it.
  group_state(std::unique_ptr<muster::transport> transport, const group_settings& settings,
              std::shared_ptr<group_state> parent = nullptr, std::uint64_t group_id = 0,
              std::shared_ptr<revocation> end = nullptr);

  ~group_state();

  /// Locks the group for the calling thread if there may be a thread besides the caller's; otherwise returns an empty
  /// lock. The functions below that change the group are called with the lock held.
  [[nodiscard]] std::unique_lock<std::mutex> guard() {
    return threaded ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
  }
  /// Wakes the progress thread, if the settings request one and a call is outstanding. The first call starts the
  /// thread.
  void hand_to_thread();

  /// Checks before a call that the group has not failed: throws the failure. Throws configuration_error for an invalid
  /// `timeout` of the call.
  void check_before_call(seconds timeout = seconds(0));
  /// Tries the fast path of the most common case: no outstanding call, and a transport whose native collectives come
  /// first. Returns true when the call is done. Returns false when the call needs the queue; then nothing has happened.
  bool try_native_fast_path(collective_call& call);
  /// Selects the algorithm of a call, assigns the sequence number and appends the call to the queue.
  void enqueue(operation_state& op);
  /// Starts a message: appends it to the messages of the group. An error fails the group.
  void start_message(message_operation& op);
  /// Returns the number of calls so far, which is the sequence number of the next call.
  [[nodiscard]] std::uint64_t sequence() const noexcept { return failures_.calls().count(); }
  /// Advances the queue, and the message `awaited` if it is not null, without waiting; returns true if a call has
  /// advanced. An error fails the group.
  bool progress(operation_state* awaited = nullptr);
  /// Waits until the operation is done (returns true) or the limit is reached (returns false). Does not throw the
  /// operation's error.
  bool wait(operation_state& op, clock::time_point limit);
  /// Fails the group when its first call, or the message `awaited`, is past its deadline. The time of a call starts
  /// with the first check. Returns the current time.
  clock::time_point check_deadline(operation_state* awaited = nullptr) noexcept;
  /// Records the end of a completed call for the flight record. A call without a deadline has no times.
  void record_end(const operation_state& op) noexcept {
    if (!op.is_message && op.deadline != clock::time_point::max())
      failures_.calls().ended(op.call.sequence, clock::now());
  }

  /// Handles the control messages, a revocation, and a failure of the parent group: each may fail the group.
  void handle_control_messages() noexcept;
  /// Refuses a call of this rank whose arguments are wrong, before the call starts: throws configuration_error with the
  /// text. The group does not fail. If the rank then leaves without another call, the ranks that wait for it receive
  /// the text.
  [[noreturn]] void refuse_call(const std::string& text);
  /// Fails the group and all its calls. `follows`: the cause is another rank's, see failure_protocol.
  void fail(std::exception_ptr cause, bool follows = false) noexcept;
  void abort(std::string_view reason, int status) noexcept;
  [[nodiscard]] bool failed() const noexcept { return failure() != nullptr; }
  [[nodiscard]] const std::exception_ptr& failure() const noexcept { return failures_.failure(); }
  [[nodiscard]] bool follows() const noexcept { return failures_.follows(); }
  const std::vector<std::optional<departure>>& await_departures(clock::time_point until) noexcept {
    return failures_.await_departures(until);
  }

  /// Returns the algorithm for a call of `bytes` bytes: `requested`, or the choice of the selector for `automatic`.
  /// Throws configuration_error if the collective does not have the requested algorithm.
  [[nodiscard]] algorithm choose_for(collective kind, std::size_t bytes, algorithm requested);
  /// Changes the settings of later calls.
  void configure(const group_settings& next);

  std::unique_ptr<muster::transport> transport;
  const transport_abilities abilities;
  const int ranks;
  const bool oversubscribed;
  // True once a thread besides the caller's may work here: a progress thread, or the thread of a child group. Never
  // reset.
  bool threaded = false;
  group_settings settings;
  std::shared_ptr<group_state> parent;
  std::uint64_t id;
  const std::shared_ptr<revocation> end;
  frame_pool pool;
  std::vector<buffer<std::byte>> scratch;

 private:
  // The state of a wait without progress: how long the wait has spun and yielded, when this rank reports its position
  // next, and the time from then to the following report.
  struct stall {
    [[nodiscard]] bool spin(bool oversubscribed);

    bool spun = false;  // true when the wait has spun long enough
    int spins = 0;
    int yields = 0;
    clock::time_point spin_until{};
    clock::time_point next_report = clock::time_point::max();
    seconds report_interval{0};
  };

  void append(operation_state& op) noexcept;
  /// Throws for a message past its deadline, and fails the group for a message whose peer has left. Returns the time of
  /// the next check. The time of a message starts with the first check.
  clock::time_point check_message(operation_state& awaited, clock::time_point now);
  /// Returns the requested algorithm; throws configuration_error if the collective does not have the algorithm here.
  [[nodiscard]] algorithm require_algorithm(collective kind, algorithm requested);
  [[nodiscard]] bool may_be_threaded(const group_settings& requested) const noexcept;
  /// Makes this group and its ancestors threaded: a thread that works here polls the ancestors too.
  void become_threaded() noexcept;
  void run_progress_thread(const std::stop_token& stop);
  bool wait_slowly(operation_state& op, clock::time_point limit, stall& stalled);
  /// Handles the parent group's control messages; its failure fails this group. If another thread has locked the
  /// parent, waits for the lock (`waits`) or returns.
  void poll_parent(bool waits) noexcept;
  /// Ends the outstanding calls if the group has failed, and writes the flight record before.
  void end_calls_of_failed() noexcept;
  /// Writes the last calls in this group and in its ancestors to the flight record.
  void write_flight_record(int status, const std::string& reason) noexcept;

  std::mutex mutex_;
  std::condition_variable_any work_available_;  // notified when `queue_` gets a call
  std::jthread progress_thread_;

  // Guarded by mutex_ when the group is threaded.
  algorithm_selector algorithm_selector_;
  operation_queue queue_;
  failure_protocol failures_;
  std::exception_ptr refusal_;
  std::uint64_t refused_at_ = 0;                                // number of calls before the refused call
  std::uint32_t records_requested_ = flight_records_requested;  // value at the last check
};

}}}  // namespace muster::v0::detail

#include <muster/comm/group/detail/group_state-inl.hpp>
