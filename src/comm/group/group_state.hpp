// What is behind a group: it makes its calls, waits for them with a deadline, and ends by the failure protocol.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <muster/comm/algorithms/chooser.hpp>

#include "failure_protocol.hpp"
#include "operation.hpp"
#include "revocation.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Between two looks at a cache line: without a break they take it from the core that is about to write it, and the
/// shortest call over shm takes a tenth longer.
inline void pause_core() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

class group_state {
 public:
  /// `parent`: what it was made from. `end`: by which another thread may end it, with all that is made from it.
  group_state(std::unique_ptr<muster::transport> transport, const group_settings& settings,
              std::shared_ptr<group_state> parent = nullptr, std::uint64_t id = 0,
              std::shared_ptr<revocation> end = nullptr);

  ~group_state();

  /// Held by each thread that works on the group, where there may be one beside the caller's; otherwise nothing. All
  /// below is called with it.
  [[nodiscard]] std::unique_lock<std::mutex> guard() {
    return threaded ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
  }
  /// Has the progress thread look after the calls that are under way, if there is to be one.
  void hand_to_thread();

  // Calls, in their order.
  void enter(seconds timeout = seconds(0));
  /// The short way for what is most common: nothing under way, and a transport that does the whole collective itself.
  /// False when it is not so; then nothing has happened.
  bool run_at_once(collective_call& what);
  void enqueue(operation_state& op);
  /// The calls so far: the sequence number of the next one.
  [[nodiscard]] std::uint64_t sequence() const noexcept { return peers_.calls().count(); }
  bool progress();
  /// Until it is done (true) or the limit is reached (false). Does not throw what the operation failed with.
  bool wait(operation_state& op, clock::time_point limit);
  /// Fails the group when its first call is past its deadline; the clock starts with the first look. Returns the
  /// time.
  clock::time_point check_deadline() noexcept;

  // The end.
  void poll_notices() noexcept;
  /// Throws configuration_error: the arguments of this rank's next call were wrong, and the call was not made. If the
  /// rank makes no other call before it leaves, the ranks that wait for it hear the text.
  [[noreturn]] void refuse_call(const std::string& text);
  /// Ends the group and all its calls. `follows`: another rank's reason, see failure_protocol.
  void fail(std::exception_ptr cause, bool follows = false) noexcept;
  void abort(std::string_view reason, int status) noexcept;
  [[nodiscard]] bool failed() const noexcept { return failure() != nullptr; }
  [[nodiscard]] const std::exception_ptr& failure() const noexcept { return peers_.failure(); }
  [[nodiscard]] bool follows() const noexcept { return peers_.follows(); }
  const std::vector<std::optional<departure>>& await_departures(clock::time_point until) noexcept {
    return peers_.await_departures(until);
  }

  [[nodiscard]] algorithm choose_for(collective kind, std::size_t bytes, algorithm asked);
  /// Other settings, for the calls to come.
  void configure(const group_settings& next);

  std::unique_ptr<muster::transport> transport;
  const transport_abilities abilities;
  const int ranks;
  const bool oversubscribed;
  // A thread besides the caller may work here: a progress thread, or one that uses a child. Once it may, that stays.
  bool threaded = false;
  group_settings settings;
  std::shared_ptr<group_state> parent;
  std::uint64_t id;
  const std::shared_ptr<revocation> end;
  frame_pool pool;
  std::vector<buffer<std::byte>> scratch;

 private:
  // A wait without progress: how it has passed, when the peers are told next where this rank stands, and how long until
  // the time after.
  struct stall {
    [[nodiscard]] bool spin(bool oversubscribed);

    bool spun = false;  // long enough
    int spins = 0;
    int yields = 0;
    clock::time_point spin_until{};
    clock::time_point inquiry = clock::time_point::max();
    seconds pause{0};
  };

  void append(operation_state& op) noexcept;
  /// The algorithm that was asked for; throws configuration_error where the collective does not have it here.
  [[nodiscard]] algorithm check_for(collective kind, algorithm asked);
  [[nodiscard]] bool may_be_threaded(const group_settings& asked) const noexcept;
  /// With those that it was made from: its thread polls them too.
  void become_threaded() noexcept;
  void drive(const std::stop_token& stop);
  bool rest(clock::time_point limit, stall& stalled);
  void hear_parent(bool waits) noexcept;
  /// What a control message did to the group it did to its calls, too.
  void end_calls_of_failed() noexcept;
  /// Writes down the last calls here and in the groups that this one was made from.
  void write_flight_record(int status, const std::string& why) noexcept;

  std::mutex mutex_;
  std::condition_variable_any work_there_;
  std::jthread driver_;

  choices choices_;
  operation_queue queue_;
  failure_protocol peers_;
  std::exception_ptr refusal_;
  std::uint64_t refused_at_ = 0;                                // calls before it
  std::uint32_t records_asked_for_ = flight_records_asked_for;  // and written
};

}}}  // namespace muster::v0::detail
