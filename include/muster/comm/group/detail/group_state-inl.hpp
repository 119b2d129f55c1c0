#pragma once

#include <muster/comm/group/group_state.hpp>

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include <muster/core/atomic_file.hpp>
#include <muster/core/log.hpp>
#include <muster/core/scheduling.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr int quick_turns = 256;  // tests of a native call before it is appended to the queue

inline std::string invalid_timeout_text(seconds timeout) {
  return "a timeout cannot be " + std::to_string(timeout.count()) +
         " s (a deadline is after the start of the call); give a number of seconds above 0";
}

// Returns the differences of the offsets: "3, 0, 4". The text of many counts is cut.
inline std::string counts_text(std::span<const std::size_t> offsets) {
  constexpr std::size_t most = 16;
  std::string text;
  for (std::size_t r = 0; r + 1 < offsets.size() && r < most; ++r)
    text += (r == 0 ? "" : ", ") + std::to_string(offsets[r + 1] - offsets[r]);
  return offsets.size() > most + 1 ? text + " ..." : text;
}

// Throws configuration_error for an invalid timeout. The comparison is written so that NaN is refused too.
inline void require_timeout(seconds timeout) {
  if (!(timeout > seconds(0))) throw configuration_error(invalid_timeout_text(timeout));
}

inline operation_state::operation_state(group_state& owner, collective_call&& call_in) noexcept
    : call(std::move(call_in)), steps(*owner.transport, owner.pool, owner.scratch, call) {}
inline operation_state::operation_state(group_state& owner, collective_call&& call_in,
                                        std::true_type is_a_message) noexcept
    : call(std::move(call_in)), steps(*owner.transport, owner.pool, owner.scratch, call), is_message(is_a_message) {}

inline group_state::group_state(std::unique_ptr<muster::transport> transport_in, const group_settings& settings_in,
                                std::shared_ptr<group_state> parent_in, std::uint64_t id_in,
                                std::shared_ptr<revocation> end_in)
    : transport(std::move(transport_in)),
      abilities(transport->abilities()),
      ranks(transport->size()),
      oversubscribed(transport->oversubscribed()),
      settings(settings_in),
      parent(std::move(parent_in)),
      id(id_in),
      end(std::move(end_in)),
      algorithm_selector_(abilities, transport->size(), settings.algorithm),
      failures_(*transport) {
  require_timeout(settings.timeout);
  shorten_slices_of_this_thread();  // the other ranks wait for this thread; the progress thread inherits the setting
  // A thread that waits here polls the parent groups too, which another thread may be using at the same time.
  if (parent && abilities.concurrent_groups) parent->become_threaded();
  if (may_be_threaded(settings)) become_threaded();
}

inline group_state::~group_state() {
  if (progress_thread_.joinable()) {
    progress_thread_.request_stop();
    progress_thread_.join();
  }
  // peers may wait for this rank in the call that it did not make
  if (refusal_ && refused_at_ == sequence()) fail(refusal_);
  failures_.leave();
}

inline bool group_state::may_be_threaded(const group_settings& requested) const noexcept {
  return requested.progress_thread && abilities.concurrent_groups && ranks > 1;
}

inline void group_state::become_threaded() noexcept {
  for (auto* ancestor = this; ancestor != nullptr; ancestor = ancestor->parent.get()) {
    if (!ancestor->threaded) ancestor->threaded = true;  // written once: other threads may be reading the flag
  }
}

inline void group_state::configure(const group_settings& next) {
  require_timeout(next.timeout);
  algorithm_selector next_selector(abilities, transport->size(), next.algorithm);
  settings = next;
  if (may_be_threaded(next)) become_threaded();
  algorithm_selector_ = std::move(next_selector);
}

inline algorithm group_state::choose_for(collective kind, std::size_t bytes, algorithm requested) {
  return requested == algorithm::automatic ? algorithm_selector_.algorithm_for(kind, bytes)
                                           : require_algorithm(kind, requested);
}

inline algorithm group_state::require_algorithm(collective kind, algorithm requested) {
  const auto has = [&](algorithm name) { return name != algorithm::native || abilities.native_collectives; };
  const auto available = algorithms_of(kind);
  if (has(requested) && std::find(available.begin(), available.end(), requested) != available.end()) return requested;
  std::string list;
  for (const algorithm name : available) {
    if (has(name)) list += (list.empty() ? "" : ", ") + std::string(to_string(name));
  }
  refuse_call(std::string(to_string(kind)) + " cannot run by " + std::string(to_string(requested)) + " (over " +
              std::string(abilities.name) + " it has: " + list + "); choose a listed algorithm or auto");
}

inline void group_state::refuse_call(const std::string& text) {
  refusal_ = std::make_exception_ptr(configuration_error(text));
  refused_at_ = sequence();
  std::rethrow_exception(refusal_);
}

inline void group_state::check_before_call(seconds timeout) {
  if (!(timeout >= seconds(0))) refuse_call(invalid_timeout_text(timeout));
  // Over a transport that prefers native collectives a rank is never far ahead of its peers, and the control messages
  // need no check here: a waiting caller checks them.
  if (!failed() && !abilities.prefers_native) handle_control_messages();
  if (failed()) std::rethrow_exception(failure());
}

// Returns a mismatch of a call with uneven pieces with the counts of this rank in its text; any other error unchanged.
inline std::exception_ptr with_counts(std::exception_ptr cause, const collective_call& call) {
  if (call.uneven == nullptr) return cause;
  try {
    std::rethrow_exception(cause);
  } catch (const message_mismatch&) {  // the error of a message, while the call waits
    return cause;
  } catch (const mismatch_error& mismatch) {
    std::string text = mismatch.what();
    if (!call.uneven->in.empty()) text += "; this rank's counts of the input are " + counts_text(call.uneven->in);
    if (!call.uneven->out.empty()) text += "; this rank's counts of the output are " + counts_text(call.uneven->out);
    return std::make_exception_ptr(mismatch_error(text));
  } catch (...) {
    return cause;
  }
}

inline bool group_state::try_native_fast_path(collective_call& call) {
  if (!queue_.empty() || !abilities.prefers_native || ranks == 1 || call.reduce.wide() != nullptr ||
      call.packs_buffers())
    return false;
  const algorithm requested = call.algorithm;
  if (choose_for(call.kind, payload_bytes(call, ranks), requested) != algorithm::native) return false;
  call.sequence = sequence();
  call.algorithm = algorithm::native;
  request req;
  try {
    if (!transport->native(call, req)) {
      call.algorithm = requested;
      return false;
    }
    // after the start, because the core stalls when it reads `call` as a whole right after it has written parts
    failures_.calls().record(call);
    for (int turns = quick_turns; turns > 0; --turns) {
      if (req.owning_transport() == nullptr || transport->test(req)) return true;
      if (oversubscribed && transport->should_yield()) sched_yield();
      pause_core();
    }
  } catch (...) {
    fail(with_counts(std::current_exception(), call));
    std::rethrow_exception(failure());
  }
  operation_state op(*this, collective_call(call));  // a copy: the transport uses the original
  op.begin(await(op.steps, req));
  append(op);
  wait(op, clock::time_point::max());
  if (op.failure) std::rethrow_exception(op.failure);
  return true;
}

inline void group_state::enqueue(operation_state& op) {
  op.call.algorithm = choose_for(op.call.kind, payload_bytes(op.call, ranks), op.call.algorithm);
  op.call.sequence = sequence();
  failures_.calls().record(op.call);
  append(op);
}

inline void group_state::append(operation_state& op) noexcept {
  if (op.call.timeout == seconds(0)) op.call.timeout = settings.timeout;
  queue_.append(op);
}

inline void group_state::handle_control_messages() noexcept {
  if (end && end->revoked()) return abort(end->reason(), static_cast<int>(error_kind::peer_failure));
  try {
    control_message message;
    while (!failed() && transport->poll(message)) {
      // A rank that is gone may have sent its reason in the parent group before it ended. A thread that works on the
      // parent group also detects the end of the rank, so the wait for its lock is short.
      if (message.type == control_message::kind::peer_ended) poll_parent(true);
      if (message.type == control_message::kind::peer_ended && end && !parent)
        end->on_peer_ended(message.origin, message.text);
      failures_.on_control_message(message);
    }
    if (const auto* const left = failures_.find_leaver(); left != nullptr && clock::now() >= left->until) {
      poll_parent(true);
      failures_.fail_for_leaver(*left);
    }
    end_calls_of_failed();
  } catch (...) {
    fail(std::current_exception());
  }
  if (!failed()) poll_parent(false);
}

inline void group_state::poll_parent(bool waits) noexcept {
  if (!parent) return;
  std::unique_lock<std::mutex> lock;
  if (parent->threaded)
    lock = waits ? std::unique_lock(parent->mutex_) : std::unique_lock(parent->mutex_, std::try_to_lock);
  if (parent->threaded && !lock.owns_lock())
    return;  // the thread that works on the parent polls there, and this group follows later
  parent->handle_control_messages();
  // all members here are also members of the parent, and are notified there
  if (parent->failed()) fail(parent->failure(), true);
}

inline void group_state::fail(std::exception_ptr cause, bool follows) noexcept {
  // notifies the peers before the calls end: a peer should have the cause before it can detect that this rank has
  // stopped
  failures_.fail(std::move(cause), follows);
  end_calls_of_failed();
}

inline void group_state::end_calls_of_failed() noexcept {
  if (!failed()) return;
  if (end) end->note_failure();
  // A group that a dead rank or another thread has ended writes no flight record.
  const int status = exit_status_of(failure());
  if (!queue_.idle() && status != static_cast<int>(error_kind::peer_failure))
    write_flight_record(follows() ? static_cast<int>(error_kind::peer_failure) : status, describe(failure()));
  queue_.end(failure());
}

inline void group_state::write_flight_record(int status, const std::string& reason) noexcept {
  if (flight_record_folder().empty()) return;
  try {
    const auto now = clock::now();
    const auto process = std::to_string(::getpid());
    std::string text =
        "muster-flight-record 1\nprocess " + process + "\nstatus " + std::to_string(status) + "\nwhy " + reason + "\n";
    std::string path;
    for (auto* ancestor = this; ancestor != nullptr; ancestor = ancestor->parent.get()) {
      std::unique_lock<std::mutex> lock(ancestor->mutex_, std::defer_lock);
      if (ancestor != this && ancestor->threaded && !lock.try_lock()) continue;  // another thread works on that group
      const auto done = ancestor->queue_.empty() ? ancestor->sequence() : ancestor->queue_.first().call.sequence;
      const auto rank = std::to_string(ancestor->transport->rank());
      text += "group " + std::to_string(ancestor->id) + " " + rank + " " + std::to_string(ancestor->ranks) + " " +
              std::to_string(done) + "\n" + ancestor->failures_.calls().describe(now);
      path =
          flight_record_folder() + "/" + process + "-" + rank + ".record";  // ranks that are threads have a file each
    }
    write_atomically(path, text);
  } catch (const std::exception& failed) {
    log(log_level::warning, std::string("the flight record was not written: ") + failed.what());
  }
}

inline void group_state::abort(std::string_view reason, int status) noexcept {
  failures_.abort(reason, status);
  end_calls_of_failed();
}

}}}  // namespace muster::v0::detail
