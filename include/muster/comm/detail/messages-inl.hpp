// The start of messages, and their deadlines.
#pragma once

#include <muster/comm/messages.hpp>

#include <algorithm>
#include <functional>

#include <muster/comm/group/group_state.hpp>
#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {

// Returns the name of the call, as errors write it.
inline std::string_view name_of(const message_call& message) noexcept {
  if (message.peeks) return "probe";
  if (!message.sends) return "receive";
  return !message.receives ? "send" : "send_receive";
}

inline std::string rank_text(int rank) { return rank == any_rank ? "any rank" : "rank " + std::to_string(rank); }

inline void check_message(group& ranks, const message_call& message) {
  const auto refuse = [&](const std::string& text) {
    refuse_arguments(&ranks, std::string(name_of(message)) + ": " + text);
  };
  const std::string range =
      " (the group has ranks 0 to " + std::to_string(ranks.size() - 1) + "); choose a rank in that range";
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < ranks.size(); };
  if (message.sends && !is_rank(message.to))
    refuse("the receiver cannot be rank " + std::to_string(message.to) + range);
  if (message.receives && message.from != any_rank && !is_rank(message.from))
    refuse("the sender cannot be rank " + std::to_string(message.from) + range);
  if (message.from == any_rank && !ranks.state()->abilities.any_source)
    refuse("the transport " + std::string(ranks.state()->abilities.name) +
           " cannot receive from any rank; name a rank");
  if (message.options.tag < 0 || message.options.tag > largest_message_tag)
    refuse("the tag cannot be " + std::to_string(message.options.tag) + " (tags are from 0 to " +
           std::to_string(largest_message_tag) + "); choose a tag in that range");
  const std::less<const std::byte*> before;
  if (message.in_bytes > 0 && message.out_bytes > 0 && before(message.in, message.out + message.out_bytes) &&
      before(message.out, message.in + message.in_bytes))
    refuse("the two buffers overlap (the call reads one and writes the other); give it two buffers");
}

inline void set_arguments(request& req, const message_call& message, bool sends) {
  req.data = sends ? const_cast<std::byte*>(message.out) : message.in;  // a send only reads the buffer
  req.bytes = sends ? message.out_bytes : message.in_bytes;
  req.peer = sends ? message.to : message.from;
  req.tag = static_cast<std::uint32_t>(message.options.tag) + 1;  // 0 is the tag of collectives
  req.peeks = !sends && message.peeks;
  req.signature.type = message.type;
}

inline task pass_messages(collective_context& ctx, transport& over, const message_call& message) {
  request receiving;
  request sending;
  if (message.receives) {
    set_arguments(receiving, message, false);
    over.receive(receiving);
  }
  if (message.sends) {
    set_arguments(sending, message, true);
    over.send(sending);
  }
  // Tests both: over mpi the rest of a large message moves only when its receive is tested.
  co_await ctx.until([&] {
    const bool is_sent = !message.sends || ctx.test(sending);
    const bool is_received = !message.receives || ctx.test(receiving);
    return is_sent && is_received;
  });
  if (message.receives && message.options.status != nullptr)
    *message.options.status = {receiving.source, message.options.tag, receiving.received};
}

// The call of a message, for its time limit and its records.
inline collective_call call_of(const message_call& message) {
  return collective_call({.count = message.out_bytes + message.in_bytes, .type = message.type}, message.out, message.in,
                         1, {}, message.options.timeout);
}

MUSTER_INLINE message_operation::message_operation(group_state& owner, const message_call& message_in)
    : operation_state(owner, call_of(message_in), std::true_type{}), message(message_in) {}

MUSTER_INLINE void group_state::start_message(message_operation& op) {
  if (op.call.timeout == seconds(0)) op.call.timeout = settings.timeout;
  queue_.append_message(op);
  try {
    op.begin(pass_messages(op.steps, *transport, op.message));
    op.steps.advance();
  } catch (...) {
    fail(std::current_exception());
  }
}

MUSTER_INLINE message_status run(group& ranks, message_call message) {
  auto& state = *ranks.state();
  const scoped_event measured(activity::communication, name_of(message), message.out_bytes + message.in_bytes);
  message_status status;
  auto* const requested = std::exchange(message.options.status, &status);
  check_message(ranks, message);
  const auto held = state.guard();
  state.check_before_call(message.options.timeout);
  message_operation op(state, message);
  state.start_message(op);
  state.wait(op, clock::time_point::max());
  if (op.failure) std::rethrow_exception(op.failure);
  if (requested != nullptr) *requested = status;
  return status;
}

MUSTER_INLINE work start(group& ranks, const message_call& message) {
  auto& state = *ranks.state();
  check_message(ranks, message);
  const auto held = state.guard();
  state.check_before_call(message.options.timeout);
  void* const memory = state.pool.take(sizeof(message_operation));
  auto* const op = ::new (memory) message_operation(state, message);
  work handle(ranks.state(), std::unique_ptr<operation_state, operation_release>(op));
  state.start_message(*op);
  state.progress();
  state.hand_to_thread();
  return handle;
}

// Returns the rank that has left and that the message waits for; null if there is none.
inline const failure_protocol::leaver* leaver_of(const message_call& message, const failure_protocol& failures,
                                                 int rank_count) {
  const failure_protocol::leaver* left = message.sends ? failures.find_left(message.to) : nullptr;
  if (left != nullptr || !message.receives) return left;
  if (message.from != any_rank) return failures.find_left(message.from);
  return failures.left_count() == rank_count - 1 ? failures.last_left() : nullptr;
}

[[noreturn]] inline void throw_timeout(const message_call& message, seconds timeout) {
  std::vector<int> peers;
  std::string text(name_of(message));
  if (message.sends) text += " to " + rank_text(message.to);
  if (message.receives) text += " from " + rank_text(message.from);
  if (message.sends) peers.push_back(message.to);
  if (message.receives && message.from >= 0 && !(message.sends && message.from == message.to))
    peers.push_back(message.from);
  throw timeout_error(std::string(name_of(message)), peers,
                      text + " with tag " + std::to_string(message.options.tag) + " did not finish in " +
                          std::to_string(timeout.count()) +
                          " s (the other rank has not called its part); check that rank, or raise --timeout / "
                          "MUSTER_TIMEOUT");
}

MUSTER_INLINE clock::time_point group_state::check_message(operation_state& awaited, clock::time_point now) {
  auto& op = static_cast<message_operation&>(awaited);
  if (op.deadline == clock::time_point::max()) op.deadline = deadline_after(op.call.timeout);
  if (now >= op.deadline) throw_timeout(op.message, op.call.timeout);
  const auto* const left = leaver_of(op.message, failures_, ranks);
  if (left == nullptr) return op.deadline;
  if (now < left->until) return std::min(op.deadline, left->until);
  failures_.fail_for_leaver(*left);
  end_calls_of_failed();
  return now;
}

}}}  // namespace muster::v0::detail
