// A call on a group from its start to its end, and the queue of a group's calls.
#pragma once

#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include <muster/comm/collectives/call.hpp>
#include <muster/comm/messages.hpp>
#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 { namespace detail {

class group_state;

/// A call on a group from its start to its end.
class operation_state {
 public:
  operation_state(group_state& owner, collective_call&& call) noexcept;

  /// Starts the coroutine that performs the call.
  void begin(task coroutine) noexcept {
    begun = true;
    body = std::move(coroutine);
    steps.start(body.handle());
  }

  collective_call call;
  std::unique_ptr<const uneven_pieces> division;  // the uneven pieces of an asynchronous call
  collective_context steps;
  task body;
  bool begun = false;
  bool done = false;
  std::exception_ptr failure;
  // Set at the first check of the deadline. A call that is done at once does not read the clock.
  clock::time_point deadline = clock::time_point::max();
  bool records_times = false;  // true when an event sink records the two times below
  clock::time_point begun_at{};
  clock::time_point done_at{};
  const bool is_message = false;
  operation_state* next = nullptr;      // the next call in the queue
  operation_state* previous = nullptr;  // the previous message in the queue

 protected:
  // Makes the operation of a message.
  operation_state(group_state& owner, collective_call&& call, std::true_type is_a_message) noexcept;
};

/// Returns the coroutine that performs the call by the algorithm `selected`. From here on only the call uses the
/// buffers: this function may already copy the input. With `check_full` a barrier compares the signatures before a
/// native collective.
task make_task(collective_context& ctx, const collective_call& call, algorithm selected, bool check_full);

/// Awaits a request that the caller stores.
task await(collective_context& ctx, request& req);

/// Returns the size in bytes of the larger buffer of a call, by which an algorithm is chosen.
std::size_t payload_bytes(const collective_call& call, int rank_count);

/// A message from its start to its end.
class message_operation : public operation_state {
 public:
  message_operation(group_state& owner, const message_call& message_in);
  const message_call message;
};

/// The calls of a group that are not done, in order: the first collective runs, the others wait. All messages run. A
/// call of `progress` advances a few messages, in turn: the work for each message does not grow with their number.
class operation_queue {
 public:
  /// Returns true if there is no collective.
  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }
  /// Returns true if there is neither a collective nor a message.
  [[nodiscard]] bool idle() const noexcept { return empty() && messages_ == nullptr; }
  /// Appends a message, which the caller begins without waiting for earlier operations.
  void append_message(operation_state& op) noexcept;
  [[nodiscard]] operation_state& first() noexcept { return *head_; }
  void append(operation_state& op) noexcept {
    (tail_ == nullptr ? head_ : tail_->next) = &op;
    tail_ = &op;
  }
  /// Advances the first calls, and the message `awaited` if it is not null; returns true when something has moved.
  /// Throws the error of a failed call, which stays in the queue.
  bool progress(bool check_full, operation_state* awaited = nullptr);
  /// Ends all calls with this failure. Afterwards the transport touches none of their buffers.
  void end(const std::exception_ptr& failure) noexcept {
    while (head_ != nullptr) finish_first(failure);
    while (messages_ != nullptr) {
      operation_state& op = *messages_;
      remove_message(op);
      finish(op, failure);
    }
  }

 private:
  void begin_first(bool check_full) {
    operation_state& op = *head_;
    if (op.records_times) op.begun_at = clock::now();
    op.begin(make_task(op.steps, op.call, op.call.algorithm, check_full));
  }
  static bool advance(operation_state& op, bool& moved);
  bool progress_messages(operation_state* awaited);
  bool advance_message(operation_state& op);
  void remove_message(operation_state& op) noexcept;
  static void finish(operation_state& op, std::exception_ptr failure) noexcept;
  void finish_first(std::exception_ptr failure) noexcept;

  static constexpr int messages_at_once = 16;  // number of messages that a call of `progress` advances

  operation_state* messages_ = nullptr;
  operation_state* last_message_ = nullptr;
  operation_state* head_ = nullptr;
  operation_state* tail_ = nullptr;
};

// These are inline: a call of a few bytes uses them several times, and function calls would take a tenth of the time.

// Returns true when the operation is done.
inline bool operation_queue::advance(operation_state& op, bool& moved) {
  moved |= op.steps.advance();
  if (!op.body.finished()) return false;
  if (op.body.failure()) std::rethrow_exception(op.body.failure());
  return true;
}

inline bool operation_queue::progress(bool check_full, operation_state* awaited) {
  bool moved = false;
  while (head_ != nullptr) {
    if (!head_->begun) begin_first(check_full);
    if (!advance(*head_, moved)) break;
    finish_first(nullptr);
  }
  if (messages_ != nullptr) moved |= progress_messages(awaited);
  return moved;
}

inline void operation_queue::append_message(operation_state& op) noexcept {
  op.next = nullptr;
  op.previous = last_message_;
  (last_message_ == nullptr ? messages_ : last_message_->next) = &op;
  last_message_ = &op;
}

inline void operation_queue::remove_message(operation_state& op) noexcept {
  (op.previous == nullptr ? messages_ : op.previous->next) = op.next;
  (op.next == nullptr ? last_message_ : op.next->previous) = op.previous;
}

// Returns true if the message has moved. A finished message leaves the queue.
inline bool operation_queue::advance_message(operation_state& op) {
  bool moved = false;
  if (!advance(op, moved)) return moved;
  remove_message(op);
  finish(op, nullptr);
  return true;
}

inline bool operation_queue::progress_messages(operation_state* awaited) {
  bool moved = awaited != nullptr && awaited->is_message && !awaited->done && advance_message(*awaited);
  const operation_state* const end = last_message_;
  for (int turn = 0; turn < messages_at_once && messages_ != nullptr; ++turn) {
    operation_state& op = *messages_;
    const bool is_end = &op == end;
    if (&op != awaited) moved |= advance_message(op);
    if (!op.done && last_message_ != &op) {  // behind the others
      remove_message(op);
      append_message(op);
    }
    if (is_end) break;
  }
  return moved;
}

inline void operation_queue::finish_first(std::exception_ptr failure) noexcept {
  operation_state& op = *head_;
  head_ = op.next;
  if (head_ == nullptr) tail_ = nullptr;
  finish(op, std::move(failure));
}

inline void operation_queue::finish(operation_state& op, std::exception_ptr failure) noexcept {
  op.body.reset();  // cancels the requests of the coroutine; from here on the transport does not touch the buffers
  op.failure = std::move(failure);
  if (op.records_times) op.done_at = clock::now();
  op.done = true;
}

}}}  // namespace muster::v0::detail
