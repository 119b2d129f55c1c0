// One call on a group from its start to its end, and the calls of a group in their order.
#pragma once

#include <exception>
#include <utility>

#include <muster/comm/collectives/call.hpp>
#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 { namespace detail {

class group_state;

/// One call on a group from its start to its end.
class operation_state {
 public:
  operation_state(group_state& owner, collective_call&& what) noexcept;

  /// The coroutine that does it, over `steps`.
  void begin(task how) noexcept {
    begun = true;
    body = std::move(how);
    steps.start(body.handle());
  }

  collective_call what;
  executor steps;
  task body;
  bool begun = false;
  bool done = false;
  std::exception_ptr failure;
  // From the first look at the clock on: what is done at once does not ask for the time.
  clock::time_point deadline = clock::time_point::max();
  bool timed = false;  // a sink records it:
  clock::time_point begun_at{};
  clock::time_point done_at{};
  operation_state* next = nullptr;
};

/// The coroutine that does what `what` says; the buffers are this call's alone from here on.
task make_task(executor& f, const collective_call& what, algorithm how, bool check_full);

/// Awaits a request that lies elsewhere.
task await(executor& f, request& r);

/// Elements times size, of the larger of the two buffers of a call: what the choice of an algorithm goes by.
std::size_t payload_bytes(const collective_call& what, int ranks);

/// The calls of a group that are not done, in their order: the first one runs, the others wait for it.
class operation_queue {
 public:
  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }
  [[nodiscard]] operation_state& first() noexcept { return *head_; }
  void append(operation_state& op) noexcept {
    (tail_ == nullptr ? head_ : tail_->next) = &op;
    tail_ = &op;
  }
  /// Moves the first calls on; true when something has moved. Throws what a call failed with, which stays the first.
  bool progress(bool check_full);
  /// Ends all calls with this failure; from here on the transport touches none of their buffers.
  void end(const std::exception_ptr& failure) noexcept {
    while (head_ != nullptr) finish_first(failure);
  }

 private:
  void begin_first(bool check_full) {
    operation_state& op = *head_;
    if (op.timed) op.begun_at = clock::now();
    op.begin(make_task(op.steps, op.what, op.what.algorithm, check_full));
  }
  static bool advance(operation_state& op, bool& moved);
  void finish_first(std::exception_ptr failure) noexcept;

  operation_state* head_ = nullptr;
  operation_state* tail_ = nullptr;
};

// Inline: a call of a few bytes looks here several times, and a tenth of its time were the calls.

// True when it is done.
inline bool operation_queue::advance(operation_state& op, bool& moved) {
  moved |= op.steps.advance();
  if (!op.body.finished()) return false;
  if (op.body.failure()) std::rethrow_exception(op.body.failure());
  return true;
}

inline bool operation_queue::progress(bool check_full) {
  bool moved = false;
  while (head_ != nullptr) {
    if (!head_->begun) begin_first(check_full);
    if (!advance(*head_, moved)) break;
    finish_first(nullptr);
  }
  return moved;
}

inline void operation_queue::finish_first(std::exception_ptr failure) noexcept {
  operation_state& op = *head_;
  head_ = op.next;
  if (head_ == nullptr) tail_ = nullptr;
  op.body.reset();  // takes back what it has started; from here on nothing touches the buffers
  op.failure = std::move(failure);
  if (op.timed) op.done_at = clock::now();
  op.done = true;
}

}}}  // namespace muster::v0::detail
