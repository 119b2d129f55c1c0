#include "update_threads.hpp"

#include <algorithm>

namespace muster::inline v0::ps::detail {
namespace {

// Looks before a thread sleeps: about as long as a large push takes to come.
constexpr int looks = 2000;
// A payload beyond this is one of a kind: its memory is given back.
constexpr std::size_t most_kept = std::size_t{1} << 20;

inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Until `counter` is not `old` any more.
void await_change(const std::atomic<std::uint64_t>& counter, std::uint64_t old) {
  for (int look = 0; look < looks; ++look) {
    if (counter.load(std::memory_order_acquire) != old) return;
    relax();
  }
  counter.wait(old, std::memory_order_acquire);
}

}  // namespace

update_threads::update_threads(tables& values, showcase& shown, std::size_t threads, std::size_t ranges)
    : values_(values), shown_(shown), ranges_(ranges) {
  lanes_.reserve(threads);
  threads_.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i) lanes_.push_back(std::make_unique<lane>());
  try {
    for (auto& one : lanes_) threads_.emplace_back([this, &own = *one] { run(own); });
  } catch (...) {  // the system gives no more of them: those there are would wait for ever
    stop();
    throw;
  }
}

update_threads::~update_threads() { stop(); }

void update_threads::stop() {
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    next(*lanes_[i]).what = task::kind::stop;
    hand(*lanes_[i]);
  }
}

// ---- handing over ----

// The slot of the next task, when there is one free.
update_threads::task& update_threads::next(lane& to) const {
  const auto at = to.put.load(std::memory_order_relaxed);
  for (auto done = to.done.load(std::memory_order_acquire); at - done == lane::slots;
       done = to.done.load(std::memory_order_acquire))
    await_change(to.done, done);
  return to.ring[at % lane::slots];
}

void update_threads::hand(lane& to) {
  to.put.store(to.put.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  to.put.notify_one();
}

// Ranges are dealt out as they come: those of one server are no regular sequence.
update_threads::lane& update_threads::lane_of(range_id range) {
  auto& its = ranges_[range];
  if (its.lane == nowhere) its.lane = next_lane_++ % lanes_.size();
  return *lanes_[its.lane];
}

void update_threads::apply(range_id range, const log_entry& entry) {
  check();
  values_.prepare(range);  // memory is this thread's to take
  auto& to = lane_of(range);
  auto& made = next(to);
  made.what = task::kind::apply;
  made.range = range;
  made.payload.assign(entry.payload.begin(), entry.payload.end());
  made.entry = entry;
  made.entry.payload = made.payload;
  hand(to);
  ranges_[range].until = to.put.load(std::memory_order_relaxed);
}

void update_threads::show(range_id range, const shown_range& what) {
  if (shown_.name() == 0) return;  // nobody looks
  auto& its = ranges_[range];
  const bool takes_back = its.serves && !what.serves;
  const bool goes_on = !takes_back && what.version > its.version && its.lane != nowhere;
  its.version = what.version;
  its.serves = what.serves;
  // What counts from now on is acknowledged before it is there: until it is, nobody reads in place.
  shown_.expect(range, what.version);
  if (!goes_on) {
    settle(range);
    return shown_.show(range, what);
  }
  auto& to = *lanes_[its.lane];
  auto& made = next(to);
  made.what = task::kind::show;
  made.range = range;
  made.shown = what;
  hand(to);
  its.until = to.put.load(std::memory_order_relaxed);
}

void update_threads::show_slowest(std::uint64_t clock) {
  if (clock == slowest_ || shown_.name() == 0) return;
  if (clock < slowest_) {
    for (const auto& one : lanes_) settle(*one, one->put.load(std::memory_order_relaxed));
    for (const auto& one : lanes_) one->slowest = clock;
    shown_.show_slowest(clock);
  } else {
    for (const auto& one : lanes_) {
      auto& made = next(*one);
      made.what = task::kind::slowest;
      made.clock = clock;
      hand(*one);
    }
  }
  slowest_ = clock;
}

// ---- what needs the values ----

void update_threads::settle(const lane& one, std::uint64_t until) const {
  for (auto done = one.done.load(std::memory_order_acquire); done < until;
       done = one.done.load(std::memory_order_acquire))
    await_change(one.done, done);
}

void update_threads::settle(range_id range) const {
  const auto& its = ranges_[range];
  if (its.lane != nowhere) settle(*lanes_[its.lane], its.until);
}

std::span<const std::byte> update_threads::read(range_id range, const message& pull) {
  settle(range);
  check();
  return values_.read(range, pull);
}

void update_threads::save(range_id range, std::string& to) const {
  settle(range);
  check();
  values_.save(range, to);
}

bool update_threads::load(range_id range, std::span<const std::byte> saved) {
  settle(range);
  return values_.load(range, saved);
}

void update_threads::reset(range_id range) {
  settle(range);
  values_.reset(range);
}

void update_threads::check() const {
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(failure_);
}

// ---- the threads ----

void update_threads::run(lane& own) {
  for (std::uint64_t at = 0;; ++at) {
    while (own.put.load(std::memory_order_acquire) == at) await_change(own.put, at);
    task& one = own.ring[at % lane::slots];
    if (one.what == task::kind::stop) return;
    if (!failed_.load(std::memory_order_acquire)) carry_out(own, one);
    if (one.payload.capacity() > most_kept) one.payload = {};
    own.done.store(at + 1, std::memory_order_release);
    own.done.notify_one();
  }
}

void update_threads::carry_out(lane& own, task& one) {
  try {
    if (one.what == task::kind::apply) return values_.apply(one.range, one.entry);
    if (one.what == task::kind::show) return shown_.show(one.range, one.shown);
    const std::lock_guard lock(slowest_mutex_);
    own.slowest = one.clock;
    // What a clock promises is there when all have come to it.
    const auto last = (*std::ranges::min_element(lanes_, {}, [](const auto& each) { return each->slowest; }))->slowest;
    if (last == one.clock) shown_.show_slowest(last);
  } catch (...) {
    const std::lock_guard lock(slowest_mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    failure_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
}

}  // namespace muster::inline v0::ps::detail
