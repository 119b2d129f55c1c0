#include "group_state.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include <muster/core/atomic_file.hpp>
#include <muster/core/log.hpp>
#include "../../core/scheduling.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr int quick_turns = 256;  // before a call is made into one that can wait

std::string wrong_timeout(seconds asked) {
  return "a timeout cannot be " + std::to_string(asked.count()) +
         " s (a deadline is after the start of the call); give a number of seconds above 0";
}

// Written so that NaN is refused too.
void require_timeout(seconds asked) {
  if (!(asked > seconds(0))) throw configuration_error(wrong_timeout(asked));
}

}  // namespace

operation_state::operation_state(group_state& owner, collective_call&& what_in) noexcept
    : what(std::move(what_in)), steps(*owner.transport, owner.pool, owner.scratch, what) {}

group_state::group_state(std::unique_ptr<muster::transport> transport_in, const group_settings& settings_in,
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
      choices_(abilities, transport->size(), settings.algorithm),
      peers_(*transport) {
  require_timeout(settings.timeout);
  shorten_slices_of_this_thread();  // the other ranks wait for what it does; the progress thread inherits it
  // A thread that waits here polls those that this group was made from, too, which another may be using just then.
  if (parent && abilities.concurrent_groups) parent->become_threaded();
  if (may_be_threaded(settings)) become_threaded();
}

group_state::~group_state() {
  if (driver_.joinable()) {
    driver_.request_stop();
    driver_.join();
  }
  if (refusal_ && refused_at_ == sequence()) fail(refusal_);  // they may wait for this rank in the call it did not make
  peers_.leave();
}

// ---- calls ----

bool group_state::may_be_threaded(const group_settings& asked) const noexcept {
  return asked.progress_thread && abilities.concurrent_groups && ranks > 1;
}

void group_state::become_threaded() noexcept {
  for (auto* one = this; one != nullptr; one = one->parent.get()) {
    if (!one->threaded) one->threaded = true;  // written once: other threads may be reading it
  }
}

void group_state::configure(const group_settings& next) {
  require_timeout(next.timeout);
  choices made(abilities, transport->size(), next.algorithm);
  settings = next;
  if (may_be_threaded(next)) become_threaded();
  choices_ = std::move(made);
}

algorithm group_state::choose_for(collective kind, std::size_t bytes, algorithm asked) {
  return asked == algorithm::automatic ? choices_.at(kind, bytes) : check_for(kind, asked);
}

algorithm group_state::check_for(collective kind, algorithm asked) {
  const auto has = [&](algorithm how) { return how != algorithm::native || abilities.native_collectives; };
  const auto known = algorithms_of(kind);
  if (has(asked) && std::find(known.begin(), known.end(), asked) != known.end()) return asked;
  std::string list;
  for (const algorithm how : known) {
    if (has(how)) list += (list.empty() ? "" : ", ") + std::string(to_string(how));
  }
  refuse_call(std::string(to_string(kind)) + " cannot run by " + std::string(to_string(asked)) + " (over " +
              std::string(abilities.name) + " it has: " + list + "); choose one of these or auto");
}

void group_state::refuse_call(const std::string& text) {
  refusal_ = std::make_exception_ptr(configuration_error(text));
  refused_at_ = sequence();
  std::rethrow_exception(refusal_);
}

void group_state::enter(seconds timeout) {
  if (!(timeout >= seconds(0))) refuse_call(wrong_timeout(timeout));
  // A transport with collectives that never get far ahead needs no look at the control messages in between: a waiting
  // caller looks.
  if (!failed() && !abilities.native_first) poll_notices();
  if (failed()) std::rethrow_exception(failure());
}

bool group_state::run_at_once(collective_call& what) {
  if (!queue_.empty() || !abilities.native_first || ranks == 1 || what.reduce.wide() != nullptr) return false;
  const algorithm asked = what.algorithm;
  if (choose_for(what.kind, payload_bytes(what, ranks), asked) != algorithm::native) return false;
  what.sequence = sequence();
  what.algorithm = algorithm::native;
  request r;
  try {
    if (!transport->native(what, r)) {
      what.algorithm = asked;
      return false;
    }
    peers_.calls().note(what);  // copied late: a processor waits to read as a whole what it has just written in parts
    for (int turns = quick_turns; turns > 0; --turns) {
      if (r.held_by() == nullptr || transport->test(r)) return true;
      if (oversubscribed && transport->should_yield()) sched_yield();
      pause_core();
    }
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  operation_state op(*this, collective_call(what));  // a copy: the transport works by the original
  op.begin(await(op.steps, r));
  append(op);
  wait(op, clock::time_point::max());
  if (op.failure) std::rethrow_exception(op.failure);
  return true;
}

void group_state::enqueue(operation_state& op) {
  op.what.algorithm = choose_for(op.what.kind, payload_bytes(op.what, ranks), op.what.algorithm);
  op.what.sequence = sequence();
  peers_.calls().note(op.what);
  append(op);
}

void group_state::append(operation_state& op) noexcept {
  if (op.what.timeout == seconds(0)) op.what.timeout = settings.timeout;
  queue_.append(op);
}

void group_state::poll_notices() noexcept {
  if (end && end->revoked()) return abort(end->why(), static_cast<int>(error_kind::peer_failure));
  try {
    control_message message;
    while (!failed() && transport->poll(message)) {
      // A rank that is gone may have said why in the group that this one was made from, and that came before its end.
      // A thread that works there just now hears of the end too: the wait is short.
      if (message.what == control_message::kind::gone) hear_parent(true);
      if (message.what == control_message::kind::gone && end && !parent) end->saw_end_of(message.origin, message.text);
      peers_.hear(message);
    }
    if (const auto* const left = peers_.find_leaver(); left != nullptr && clock::now() >= left->until) {
      hear_parent(true);
      peers_.lose(*left);
    }
    end_calls_of_failed();
  } catch (...) {
    fail(std::current_exception());
  }
  if (!failed()) hear_parent(false);
}

void group_state::hear_parent(bool waits) noexcept {
  if (!parent) return;
  std::unique_lock<std::mutex> lock;
  if (parent->threaded)
    lock = waits ? std::unique_lock(parent->mutex_) : std::unique_lock(parent->mutex_, std::try_to_lock);
  if (parent->threaded && !lock.owns_lock())
    return;  // the thread that works on the parent polls there, and hears of it
  parent->poll_notices();
  if (parent->failed()) fail(parent->failure(), true);  // our members are also its members: they hear of it there
}

void group_state::fail(std::exception_ptr cause, bool follows) noexcept {
  peers_.fail(std::move(cause),
              follows);  // told before the calls end: a peer should know before it can see this rank stop
  end_calls_of_failed();
}

void group_state::end_calls_of_failed() noexcept {
  if (!failed()) return;
  if (end) end->note_failure();
  // Where a rank has died, or another thread ends the group, no rank waits in vain.
  const int status = exit_status_of(failure());
  if (!queue_.empty() && status != static_cast<int>(error_kind::peer_failure))
    write_flight_record(follows() ? static_cast<int>(error_kind::peer_failure) : status, describe(failure()));
  queue_.end(failure());
}

void group_state::write_flight_record(int status, const std::string& why) noexcept {
  if (flight_record_folder().empty()) return;
  try {
    const auto now = clock::now();
    const auto process = std::to_string(::getpid());
    std::string text =
        "muster-flight-record 1\nprocess " + process + "\nstatus " + std::to_string(status) + "\nwhy " + why + "\n";
    std::string place;
    for (auto* one = this; one != nullptr; one = one->parent.get()) {
      std::unique_lock<std::mutex> lock(one->mutex_, std::defer_lock);
      if (one != this && one->threaded && !lock.try_lock()) continue;  // another thread works there
      const auto done = one->queue_.empty() ? one->sequence() : one->queue_.first().what.sequence;
      const auto rank = std::to_string(one->transport->rank());
      text += "group " + std::to_string(one->id) + " " + rank + " " + std::to_string(one->ranks) + " " +
              std::to_string(done) + "\n" + one->peers_.calls().describe(now);
      place = flight_record_folder() + "/" + process + "-" + rank +
              ".record";  // of ranks that are threads each has its own
    }
    write_atomically(place, text);
  } catch (const std::exception& failed) {
    log(log_level::warning, std::string("the flight record was not written: ") + failed.what());
  }
}

void group_state::abort(std::string_view reason, int status) noexcept {
  peers_.abort(reason, status);
  end_calls_of_failed();
}

}}}  // namespace muster::v0::detail
