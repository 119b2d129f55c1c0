#include "group_state.hpp"

#include <sched.h>

#include <algorithm>

#include <muster/comm/collectives/algo/chooser.hpp>

namespace muster::inline v0::detail {
namespace {

// Waiting: tests back to back for longer than it takes to wake a thread that sleeps (30 to 60 us on a virtual machine),
// or two ranks that once slept would keep each other asleep; then the processor is offered to others a few times, and
// then the transport sleeps until something happens. With more ranks than cores the peer we wait for may need this very
// core: then each turn offers it.
constexpr std::chrono::microseconds spin_time{150};
constexpr int spins_by_the_clock = 64;
constexpr int moves_by_the_clock = 4;  // a look costs some 30 ns, and so small collectives get by without one
constexpr int yields = 16;
constexpr int quick_turns = 256;  // before a call is made into one that can wait

// A wait this long is out of the ordinary: the ranks then tell each other where they stand.
constexpr seconds first_inquiry{0.05};
constexpr seconds last_inquiry{1.0};

// Written so that NaN is refused too.
void require_timeout(seconds asked, bool zero_is_the_groups) {
  if (asked > seconds(0) || (zero_is_the_groups && asked == seconds(0))) return;
  throw configuration_error("a timeout cannot be " + std::to_string(asked.count()) +
                            " s (every wait has an end, and not at once); give a number of seconds above 0");
}

stamp make_stamp(const call& what, std::uint64_t sequence, algorithm how) {
  stamp mark;
  mark.sequence = sequence;
  mark.count = what.count;
  mark.root = what.root;
  mark.kind = what.kind;
  mark.type = what.type;
  mark.op = what.reduce.code();
  mark.how = how;
  return mark;
}

}  // namespace

operation_state::operation_state(group_state& owner, call&& what_in)
    : what(std::move(what_in)),
      mark(make_stamp(what, owner.sequence,
                      owner.choose_for(what.kind, payload_bytes(what, owner.transport->size()), what.how.how))),
      steps(*owner.transport, owner.pool, owner.scratch, mark) {
  const seconds limit = what.how.timeout > seconds(0) ? what.how.timeout : owner.settings.timeout;
  timeout_seconds = limit.count();
}

operation_state::operation_state(group_state& owner, call&& what_in, const stamp& mark_in, request& begun_in)
    : what(std::move(what_in)),
      mark(mark_in),
      steps(*owner.transport, owner.pool, owner.scratch, mark),
      native(&begun_in),
      begun(true) {
  const seconds limit = what.how.timeout > seconds(0) ? what.how.timeout : owner.settings.timeout;
  timeout_seconds = limit.count();
}

group_state::group_state(std::unique_ptr<any_transport> transport_in, const group_settings& settings_in,
                         std::shared_ptr<group_state> parent_in, std::uint64_t id_in)
    : transport(std::move(transport_in)),
      abilities(transport->abilities()),
      ranks(transport->size()),
      crowded(transport->crowded()),
      settings(settings_in),
      parent(std::move(parent_in)),
      id(id_in),
      choices_(abilities, transport->size(), settings.how, settings.profile.get()),
      departures_(static_cast<std::size_t>(transport->size())),
      reached_(static_cast<std::size_t>(transport->size()), 0) {
  require_timeout(settings.timeout, false);
  if (may_be_threaded(settings)) become_threaded();
}

group_state::~group_state() {
  if (!driver_.joinable()) return;
  driver_.request_stop();
  driver_.join();
}

// ---- the progress thread ----

void group_state::hand_to_thread() {
  if (head_ == nullptr || !may_be_threaded(settings)) return;
  if (!driver_.joinable()) driver_ = std::jthread([this](const std::stop_token& stop) { drive(stop); });
  work_there_.notify_one();
}

// It holds the group only for as long as it moves something: a caller that waits drives by itself, and then this thread
// stands back. It naps and does not sleep in the transport, which a caller may need in the meantime; and it does not
// spin, for the core is somebody's who computes. A look costs several microseconds of that core, also one that finds
// the next few packets of a long message, so the longer the collective takes, the longer the nap: what is found so late
// took eight times as long at least.
void group_state::drive(const std::stop_token& stop) {
  constexpr std::chrono::microseconds shortest_nap{50};
  constexpr std::chrono::microseconds longest_nap{1000};
  std::uint64_t looked_after = 0;  // a collective's sequence number
  auto since = clock::now();
  while (!stop.stop_requested()) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    bool moved = false;
    if (lock.owns_lock()) {
      if (head_ == nullptr) {
        work_there_.wait(lock, stop, [this] { return head_ != nullptr; });
        continue;
      }
      moved = progress();
      if (!moved) poll_notices();
      check_deadline();
      if (head_ != nullptr && head_->mark.sequence != looked_after) {
        looked_after = head_->mark.sequence;
        since = clock::now();
      }
      lock.unlock();
    }
    if (moved) continue;
    std::this_thread::sleep_for(std::clamp<clock::duration>((clock::now() - since) / 8, shortest_nap, longest_nap));
  }
}

// ---- calls ----

bool group_state::may_be_threaded(const group_settings& asked) const noexcept {
  return asked.progress_thread && abilities.concurrent_groups && ranks > 1;
}

void group_state::become_threaded() noexcept {
  for (auto* one = this; one != nullptr; one = one->parent.get()) one->threaded = true;
}

void group_state::configure(const group_settings& next) {
  require_timeout(next.timeout, false);
  choices made(abilities, transport->size(), next.how, next.profile.get());
  settings = next;
  if (may_be_threaded(next)) become_threaded();
  choices_ = std::move(made);
}

algorithm group_state::choose_for(collective kind, std::size_t bytes, algorithm asked) const {
  return asked == algorithm::automatic ? choices_.at(kind, bytes) : check_for(kind, asked);
}

algorithm group_state::check_for(collective kind, algorithm asked) const {
  const auto has = [&](algorithm how) { return how != algorithm::native || abilities.native_collectives; };
  const auto known = algorithms_of(kind);
  if (has(asked) && std::find(known.begin(), known.end(), asked) != known.end()) return asked;
  std::string list;
  for (const algorithm how : known) {
    if (has(how)) list += (list.empty() ? "" : ", ") + std::string(to_string(how));
  }
  throw configuration_error(std::string(to_string(kind)) + " cannot run by " + std::string(to_string(asked)) +
                            " (over " + std::string(abilities.name) + " it has: " + list +
                            "); choose one of these or auto");
}

void group_state::enter(const options& how) {
  require_timeout(how.timeout, true);
  // A transport whose collectives never get far ahead needs no look at the notices in between: who waits looks.
  if (!failure_ && !abilities.native_first) poll_notices();
  if (failure_) std::rethrow_exception(failure_);
}

bool group_state::run_at_once(const call& what) {
  if (head_ != nullptr || !abilities.native_first || ranks == 1) return false;
  if (choose_for(what.kind, payload_bytes(what, ranks), what.how.how) != algorithm::native) return false;
  // In place and copied late: a processor waits to read as a whole what it has just written in parts.
  const native_call handed{what.kind,  what.root,         what.in,      what.out,
                           what.count, what.element_size, &what.reduce, make_stamp(what, sequence, algorithm::native)};
  request r;
  try {
    if (!transport->native(handed, r)) return false;
    history_[sequence % remembered] = handed.mark;
    ++sequence;
    for (int turns = quick_turns; turns > 0; --turns) {
      if (r.owner == nullptr || transport->test(r)) return true;
      if (crowded && transport->must_yield()) sched_yield();
    }
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  operation_state op(*this, call(what), handed.mark, r);  // a copy: the transport works by the original
  append(op);
  wait(op, clock::time_point::max());
  if (op.failure) std::rethrow_exception(op.failure);
  return true;
}

void group_state::enqueue(operation_state& op) {
  history_[op.mark.sequence % remembered] = op.mark;
  ++sequence;
  append(op);
}

void group_state::append(operation_state& op) noexcept {
  (tail_ == nullptr ? head_ : tail_->next) = &op;
  tail_ = &op;
}

void group_state::begin(operation_state& op) {
  op.begun = true;
  if (op.timed) op.begun_at = clock::now();
  algorithm how = op.mark.how;
  if (how == algorithm::native && abilities.native_first) {
    if (begin_native(op)) return;
    // What it leaves to the library it leaves at every rank alike.
    how = choose(op.what.kind, payload_bytes(op.what, transport->size()), transport->size(), abilities.costs);
  }
  op.body = make_task(op.steps, op.what, how, settings.check_full);
  op.steps.start(op.body.handle());
}

bool group_state::begin_native(operation_state& op) {
  if (transport->size() == 1) return false;
  const call& what = op.what;
  op.handed = {what.kind, what.root, what.in, what.out, what.count, what.element_size, &what.reduce, op.mark};
  if (!transport->native(op.handed, op.own_request)) return false;
  op.native = &op.own_request;
  return true;
}

// True when it is done.
bool group_state::advance(operation_state& op, bool& moved) {
  if (op.native != nullptr) return transport->test(*op.native);
  moved |= op.steps.advance();
  if (!op.body.finished()) return false;
  if (op.body.failure()) std::rethrow_exception(op.body.failure());
  return true;
}

void group_state::finish_head(std::exception_ptr cause) noexcept {
  operation_state& op = *head_;
  head_ = op.next;
  if (head_ == nullptr) tail_ = nullptr;
  if (op.native != nullptr && op.native->owner != nullptr) op.native->owner->cancel(*op.native);
  op.body.reset();  // takes back what it has started; from here on nobody touches the buffers
  op.failure = std::move(cause);
  if (op.timed) op.done_at = clock::now();
  op.done = true;
}

bool group_state::progress() {
  bool moved = false;
  while (head_ != nullptr) {
    try {
      if (!head_->begun) begin(*head_);
      if (!advance(*head_, moved)) return moved;
    } catch (...) {
      fail(std::current_exception());
      return true;
    }
    finish_head(nullptr);
  }
  return moved;
}

// One turn of spinning; false when that has lasted long enough. Looks at the clock now and then only, or each time
// where a turn may give the core away for long.
bool group_state::stall::spin(bool crowded) {
  if (spun) return false;
  if (++spins % spins_by_the_clock != 0 && !crowded) return true;
  const auto now = clock::now();
  if (spin_until == clock::time_point{}) spin_until = now + spin_time;
  spun = now >= spin_until;
  return !spun;
}

bool group_state::wait(operation_state& op, clock::time_point limit) {
  stall stalled;
  unsigned moves = 0;
  while (!op.done) {
    if (progress()) {  // where one message came the next may be close
      stalled = {};
      if (++moves % moves_by_the_clock == 0 && !op.done && check_deadline() >= limit) return op.done;
    } else if (stalled.spin(crowded)) {
      if (crowded && transport->must_yield()) sched_yield();
    } else if (stalled.yields < yields) {
      ++stalled.yields;
      sched_yield();
    } else {
      try {
        if (!rest(limit, stalled)) return false;
      } catch (...) {
        fail(std::current_exception());
      }
    }
  }
  return true;
}

// One turn of a wait that takes longer: news, deadlines, and then sleep. False when the limit is reached.
bool group_state::rest(clock::time_point limit, stall& stalled) {
  poll_notices();
  const auto now = check_deadline();
  if (head_ == nullptr) return true;  // a notice or the deadline has ended all
  if (now >= limit) return false;
  if (now >= stalled.inquiry) tell_position(*head_);
  if (now >= stalled.inquiry || stalled.inquiry == clock::time_point::max()) {
    stalled.pause = stalled.pause == seconds(0) ? std::min(first_inquiry, seconds(head_->timeout_seconds / 4))
                                                : std::min(stalled.pause * 2, last_inquiry);
    stalled.inquiry = deadline_after(stalled.pause);
  }
  transport->pause(std::min({limit, stalled.inquiry, head_->deadline}));
  return true;
}

clock::time_point group_state::check_deadline() noexcept {
  const auto now = clock::now();
  if (head_ == nullptr || !head_->begun) return now;
  if (head_->deadline == clock::time_point::max()) head_->deadline = deadline_after(seconds(head_->timeout_seconds));
  if (now < head_->deadline) return now;
  try {
    time_out(*head_);
  } catch (...) {
    fail(std::current_exception());
  }
  return now;
}

void group_state::drain(operation_state& op) noexcept { wait(op, clock::time_point::max()); }

void group_state::time_out(const operation_state& op) {
  std::vector<int> missing;
  for (int rank = 0; rank < transport->size(); ++rank) {
    if (rank != transport->rank() && reached_[static_cast<std::size_t>(rank)] < op.mark.sequence + 1)
      missing.push_back(rank);
  }
  throw timeout_error(std::string(to_string(op.mark.kind)), op.mark.sequence, std::move(missing), op.timeout_seconds);
}

void group_state::poll_notices() noexcept {
  try {
    notice message;
    while (!failure_ && transport->poll(message)) {
      // A rank that is gone may have said why in the group that this one was made from, and that came before its end.
      // Whoever works there just now hears of the end too: the wait is short.
      if (message.what == notice::kind::gone) hear_parent(true);
      handle(message);
    }
  } catch (...) {
    fail(std::current_exception());
  }
  if (!failure_) hear_parent(false);
}

void group_state::hear_parent(bool waits) noexcept {
  if (!parent) return;
  std::unique_lock<std::mutex> lock;
  if (parent->threaded)
    lock = waits ? std::unique_lock(parent->mutex_) : std::unique_lock(parent->mutex_, std::try_to_lock);
  if (parent->threaded && !lock.owns_lock()) return;  // who works on the parent just now polls there, and hears of it
  parent->poll_notices();
  if (parent->failed()) fail(parent->failure(), true);  // whose members ours are: they hear of it there
}

void group_state::handle(const notice& message) {
  if (message.what == notice::kind::position) {
    compare_position(message.origin, message.mark);
    return;
  }
  if (message.what == notice::kind::gone) {  // a dead rank says nothing itself: this one speaks
    auto& left = departures_[static_cast<std::size_t>(message.origin)];
    if (!left) left = departure{message.status, false, message.text};
    fail(std::make_exception_ptr(peer_failure({message.origin}, message.text, message.status)));
    return;
  }
  const bool first_hand = message.what == notice::kind::abort;
  auto& left = departures_[static_cast<std::size_t>(message.origin)];
  if (!left) left = departure{message.status, first_hand, message.text};
  if (failure_ || !first_hand) return;  // whoever follows somebody else is no news: the first cause comes too
  fail(std::make_exception_ptr(peer_failure(
           {message.origin},
           "rank " + std::to_string(message.origin) + " gave up (" + message.text + "); see its own message",
           message.status)),
       true);
}

void group_state::compare_position(int peer, const stamp& theirs) {
  auto& reached = reached_[static_cast<std::size_t>(peer)];
  reached = std::max(reached, theirs.sequence + 1);
  const bool known = theirs.sequence < sequence && sequence - theirs.sequence <= remembered;
  if (!known) return;
  const stamp& ours = history_[theirs.sequence % remembered];
  if (ours == theirs) return;
  fail(std::make_exception_ptr(mismatch_error("the ranks disagree about collective " + std::to_string(theirs.sequence) +
                                              " of the group (this rank called " + describe(ours) + "; rank " +
                                              std::to_string(peer) + " is in " + describe(theirs) +
                                              "); every rank must make the same calls in the same order")));
}

void group_state::tell_position(const operation_state& op) {
  notice message;
  message.what = notice::kind::position;
  message.mark = op.mark;
  for (int peer = 0; peer < transport->size(); ++peer) {
    if (peer != transport->rank()) transport->notify(peer, message);
  }
}

void group_state::tell_all(notice::kind what, int status, std::string_view text) noexcept {
  notice message;
  message.what = what;
  message.status = status;
  message.set_text(text);
  for (int peer = 0; peer < transport->size(); ++peer) {
    if (peer == transport->rank()) continue;
    try {
      transport->notify(peer, message);
    } catch (...) {  // a peer that cannot be told finds out by its deadline
    }
  }
}

void group_state::fail(std::exception_ptr cause, bool follows) noexcept {
  if (failure_) return;
  failure_ = cause;
  follows_ = follows;
  // Told before the operations end: a peer should know before it can see this rank stop.
  tell_all(follows_ ? notice::kind::acknowledge : notice::kind::abort, exit_status_of(cause), describe(cause));
  while (head_ != nullptr) finish_head(cause);
}

void group_state::abort(std::string_view reason, int status) noexcept {
  if (failure_) return;
  failure_ = std::make_exception_ptr(
      peer_failure({transport->rank()}, "this rank gave up (" + std::string(reason) + ")", status));
  tell_all(notice::kind::abort, status, reason);
  while (head_ != nullptr) finish_head(failure_);
}

const std::vector<std::optional<departure>>& group_state::await_departures(clock::time_point until) noexcept {
  const auto all_left = [&] {
    for (int rank = 0; rank < transport->size(); ++rank) {
      if (rank != transport->rank() && !departures_[static_cast<std::size_t>(rank)]) return false;
    }
    return true;
  };
  try {
    notice message;
    for (;;) {
      while (transport->poll(message)) handle(message);
      if (all_left() || clock::now() >= until) break;
      transport->pause(until);
    }
  } catch (...) {  // a transport that is broken tells us nothing more
  }
  return departures_;
}

}  // namespace muster::inline v0::detail
