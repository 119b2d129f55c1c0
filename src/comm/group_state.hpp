// What is behind a group: its calls in their order, what it knows of its peers, and the end of it.
#pragma once

#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/collectives/algo/chooser.hpp>
#include <muster/comm/collectives/call.hpp>
#include <muster/comm/task.hpp>

namespace muster::inline v0::detail {

class group_state;

/// One call on a group from its start to its end.
class operation_state {
 public:
  operation_state(group_state& owner, call&& what);
  /// One that the transport has begun already; the request stays where it is.
  operation_state(group_state& owner, call&& what, const stamp& mark, request& begun);
  operation_state(const operation_state&) = delete;
  operation_state& operator=(const operation_state&) = delete;

  call what;
  stamp mark;
  flow<any_transport> steps;
  task body;
  // A collective that the transport does with all that belongs to it needs no coroutine.
  native_call handed;
  request own_request;
  request* native = nullptr;  // own_request or another's; null when a coroutine does it
  bool begun = false;
  bool done = false;
  std::exception_ptr failure;
  // From the first look at the clock on: what is done at once does not ask for the time.
  clock::time_point deadline = clock::time_point::max();
  double timeout_seconds = 0;
  bool timed = false;  // somebody wants to know:
  clock::time_point begun_at{};
  clock::time_point done_at{};
  operation_state* next = nullptr;
};

/// How a peer left the group.
struct departure {
  int status = 0;
  bool first_hand = false;  ///< it had a reason of its own; otherwise it followed somebody else
  std::string text;
};

class group_state {
 public:
  group_state(std::unique_ptr<any_transport> transport, const group_settings& settings,
              std::shared_ptr<group_state> parent, std::uint64_t id);

  ~group_state();

  /// Held by whoever works on the group, while there is a thread beside the caller's; otherwise nothing. All below is
  /// called with it.
  [[nodiscard]] std::unique_lock<std::mutex> guard() {
    return threaded ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
  }
  /// Has the progress thread look after the calls that are under way, if there is to be one.
  void hand_to_thread();

  // Calls, in their order.
  void enter(const options& how = {});
  /// The short way for what is most common: nothing under way, and a transport that does the whole collective itself.
  /// False when it is not so; then nothing has happened.
  bool run_at_once(const call& what);
  void enqueue(operation_state& op);
  bool progress();
  /// Until it is done (true) or the limit is reached (false). Does not throw what the operation failed with.
  bool wait(operation_state& op, clock::time_point limit);
  void drain(operation_state& op) noexcept;
  /// Fails the group when its first call is past its deadline; the clock starts with the first look. Returns the
  /// time.
  clock::time_point check_deadline() noexcept;

  // The end.
  void poll_notices() noexcept;
  /// Ends the group. `follows`: another rank's reason, which all members have heard or will hear from that rank.
  void fail(std::exception_ptr cause, bool follows = false) noexcept;
  void abort(std::string_view reason, int status) noexcept;
  [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
  [[nodiscard]] std::exception_ptr failure() const noexcept { return failure_; }
  /// Whether the failure is another rank's reason, not one of this rank's own.
  [[nodiscard]] bool follows() const noexcept { return follows_; }
  /// After a failure: waits until every peer has said how it leaves, or until the deadline.
  const std::vector<std::optional<departure>>& await_departures(clock::time_point until) noexcept;

  [[nodiscard]] algorithm choose_for(collective kind, std::size_t bytes, algorithm asked) const;
  /// Other settings, for the calls to come.
  void configure(const group_settings& next);

  std::unique_ptr<any_transport> transport;
  const transport_abilities abilities;
  const int ranks;
  const bool crowded;
  bool threaded = false;  // a thread besides the caller works here, or on a child: once there is such a thread it stays
  group_settings settings;
  std::shared_ptr<group_state> parent;
  std::uint64_t id;
  std::uint64_t sequence = 0;
  frame_pool pool;
  std::vector<buffer<std::byte>> scratch;

 private:
  // A wait without progress: how it has passed, when the peers are told next where this rank stands, and how long until
  // the time after.
  struct stall {
    [[nodiscard]] bool spin(bool crowded);

    bool spun = false;  // long enough
    int spins = 0;
    int yields = 0;
    clock::time_point spin_until{};
    clock::time_point inquiry = clock::time_point::max();
    seconds pause{0};
  };

  /// The algorithm that was asked for; throws configuration_error where the collective does not have it here.
  [[nodiscard]] algorithm check_for(collective kind, algorithm asked) const;
  [[nodiscard]] bool may_be_threaded(const group_settings& asked) const noexcept;
  /// With those that it was made from: its thread polls them too.
  void become_threaded() noexcept;
  void drive(const std::stop_token& stop);
  bool rest(clock::time_point limit, stall& stalled);
  void begin(operation_state& op);
  bool begin_native(operation_state& op);
  void append(operation_state& op) noexcept;
  bool advance(operation_state& op, bool& moved);
  void finish_head(std::exception_ptr failure) noexcept;
  void hear_parent(bool waits) noexcept;
  void handle(const notice& message);
  void compare_position(int peer, const stamp& theirs);
  void tell_position(const operation_state& op);
  void tell_all(notice::kind what, int status, std::string_view text) noexcept;
  [[noreturn]] void time_out(const operation_state& op);

  std::mutex mutex_;
  std::condition_variable_any work_there_;
  std::jthread driver_;

  choices choices_;
  operation_state* head_ = nullptr;
  operation_state* tail_ = nullptr;
  std::exception_ptr failure_;
  bool follows_ = false;
  std::vector<std::optional<departure>> departures_;

  // The last calls of this rank and the last known one of each peer, to find out who is missing and who disagrees.
  static constexpr std::size_t remembered = 64;
  std::array<stamp, remembered> history_{};
  std::vector<std::uint64_t> reached_;  // by peer: it was seen in this collective; 0 nothing yet, else sequence + 1
};

/// The coroutine that does what `what` says; the buffers are this call's alone from here on.
task make_task(flow<any_transport>& f, const call& what, algorithm how, bool check_full);

/// Elements times size, of the larger of the two buffers of a call: what the choice of an algorithm goes by.
std::size_t payload_bytes(const call& what, int ranks);

}  // namespace muster::inline v0::detail
