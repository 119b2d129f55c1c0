// One call on a group from its start to its end, and the calls of a group in their order.
#pragma once

#include <exception>
#include <utility>

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
  flow steps;
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
  bool timed = false;  // a sink records it:
  clock::time_point begun_at{};
  clock::time_point done_at{};
  operation_state* next = nullptr;
};

/// The calls of a group that are not done, in their order: the first one runs, the others wait for it.
class operation_queue {
 public:
  operation_queue(transport& transport, const transport_abilities& abilities) noexcept
      : transport_(transport), abilities_(abilities) {}

  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }
  [[nodiscard]] operation_state& first() noexcept { return *head_; }
  void append(operation_state& op) noexcept;
  /// Moves the first calls on; true when something has moved. Throws what a call failed with, which stays the first.
  bool progress(bool check_full);
  /// Ends all calls with this failure; from here on the transport touches none of their buffers.
  void end(const std::exception_ptr& failure) noexcept;

 private:
  void begin(operation_state& op, bool check_full);
  bool begin_native(operation_state& op);
  bool advance(operation_state& op, bool& moved);
  void finish_first(std::exception_ptr failure) noexcept;

  transport& transport_;
  const transport_abilities& abilities_;
  operation_state* head_ = nullptr;
  operation_state* tail_ = nullptr;
};

// Inline: a call of a few bytes looks here several times, and a tenth of its time were the calls.

// True when it is done.
inline bool operation_queue::advance(operation_state& op, bool& moved) {
  if (op.native != nullptr) return transport_.test(*op.native);
  moved |= op.steps.advance();
  if (!op.body.finished()) return false;
  if (op.body.failure()) std::rethrow_exception(op.body.failure());
  return true;
}

inline bool operation_queue::progress(bool check_full) {
  bool moved = false;
  while (head_ != nullptr) {
    if (!head_->begun) begin(*head_, check_full);
    if (!advance(*head_, moved)) break;
    finish_first(nullptr);
  }
  return moved;
}

inline void operation_queue::finish_first(std::exception_ptr failure) noexcept {
  operation_state& op = *head_;
  head_ = op.next;
  if (head_ == nullptr) tail_ = nullptr;
  if (op.native != nullptr && op.native->owner != nullptr) op.native->owner->cancel(*op.native);
  op.body.reset();  // takes back what it has started; from here on nothing touches the buffers
  op.failure = std::move(failure);
  if (op.timed) op.done_at = clock::now();
  op.done = true;
}

/// The coroutine that does what `what` says; the buffers are this call's alone from here on.
task make_task(flow& f, const call& what, algorithm how, bool check_full);

/// Elements times size, of the larger of the two buffers of a call: what the choice of an algorithm goes by.
std::size_t payload_bytes(const call& what, int ranks);

}  // namespace muster::inline v0::detail
