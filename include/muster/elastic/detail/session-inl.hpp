#pragma once

#include <muster/elastic/session.hpp>

#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>
#include <muster/elastic/rank_comparison.hpp>

namespace muster { inline namespace v0 {
namespace detail {

class fixed_backend final : public detail::session_backend {
 public:
  fixed_backend(group& ranks, bool together) noexcept : ranks_(&ranks), together_(together) {}

  void prepare(state& target) override {
    if (!together_ || began_ == &target) return;
    detail::begin_together(*ranks_, target);
    began_ = &target;
  }
  group& ranks() override { return *ranks_; }

 private:
  group* ranks_;
  bool together_;
  const state* began_ = nullptr;
};

inline bool reached(const state& target, const run_limits& limits) {
  return (limits.steps != 0 && target.steps() >= limits.steps) ||
         (limits.epochs != 0 && target.has_data() && target.position().data.epoch >= limits.epochs);
}

inline void require_an_end(const state& target, const run_limits& limits) {
  if (target.has_data() || limits.steps != 0 || limits.every_steps != 0) return;
  throw configuration_error(
      "session.run would not end (the state has no cursor, and there is no limit on steps); give the state "
      "loader.cursor(), or the run {.steps = N}");
}

// Moves to the start of the next epoch if an epoch is over; returns false when no work is left.
inline bool start_epoch(state& target, const run_limits& limits) {
  if (reached(target, limits)) return false;
  if (!target.epoch_is_over()) return true;
  if (limits.epochs != 0 && target.position().data.epoch + 1 >= limits.epochs) return false;
  target.next_epoch();
  if (target.epoch_is_over()) {
    throw configuration_error(
        "an epoch of the data has no batch (it has fewer samples than one batch); choose a smaller batch");
  }
  return true;
}

// Clears the run of a state at the begin and at the end of a call of `session::run`, however the call ends.
struct run_mark {
  explicit run_mark(state& marked) noexcept : target(marked) { target.set_run(std::nullopt); }
  run_mark(const run_mark&) = delete;
  run_mark& operator=(const run_mark&) = delete;
  ~run_mark() { target.set_run(std::nullopt); }
  state& target;
};

// Returns true if the others have finished this call, and then reduces the backlog.
inline bool skip_finished_call(std::uint32_t& backlog) {
  if (backlog == 0) return false;
  --backlog;
  return true;
}

}  // namespace detail

MUSTER_INLINE bool session::attempt(state& target, const std::function<void(step&)>& f, bool commits) {
  const scoped_event measured(activity::step, commits ? "step" : "evaluation", target.steps());
  target.begin_step(commits);
  try {
    step current(backend_->ranks(), backend_->generation(), target.steps(), target.progress());
    backend_->attempt([&] {
      if (commits) target.before_step(current);
      f(current);
      if (commits) target.exchange(backend_->ranks());
    });
    if (commits) target.commit_step();
  } catch (...) {
    target.roll_back();
    backend_->recover(target, std::current_exception());
    target.require_restored();
    return false;
  }
  if (commits)
    backend_->committed(target);
  else
    target.finish_evaluation();
  return true;
}

// Prepares an attempt. If the backend has moved the state past the ends of calls, adds these calls to the backlog.
MUSTER_INLINE void session::prepare(state& target) {
  const auto before = target.position();
  backend_->prepare(target);
  const auto after = target.position();
  if (after.runs > before.runs) backlog_.runs += after.runs - before.runs;
  if (after.evaluations > before.evaluations) backlog_.evaluations += after.evaluations - before.evaluations;
}

MUSTER_INLINE bool session::run_steps(state& target, const std::function<void(step&)>& f, const run_limits& limits) {
  detail::require_an_end(target, limits);
  (void)target.parts();  // owners may have added parts since
  const detail::run_mark mark(target);
  if (detail::skip_finished_call(backlog_.runs)) return true;
  prepare(target);
  if (detail::skip_finished_call(backlog_.runs)) return true;
  if (const auto theirs = target.followed_run()) {  // the others are in this run, perhaps at its end
    target.set_run(theirs);
  } else {
    if (!detail::start_epoch(target, limits)) return false;
    target.set_run(state::run_start{target.steps(), target.position().data.epoch});
  }
  const auto start = target.run().value();
  const auto is_done = [&] {
    const auto position = target.position();
    if (target.epoch_is_over() || position.data.epoch != start.epoch || detail::reached(target, limits)) return true;
    return position.steps != start.steps && limits.every_steps != 0 && position.steps % limits.every_steps == 0;
  };
  while (!is_done()) {
    (void)attempt(target, f, true);
    prepare(target);
    if (detail::skip_finished_call(backlog_.runs)) return true;
    (void)target.followed_run();  // it is this run
  }
  target.finish_run();
  return true;
}

MUSTER_INLINE bool session::evaluate_once(state& target, const std::function<void(step&)>& f) {
  (void)target.parts();
  if (detail::skip_finished_call(backlog_.evaluations)) return false;
  for (;;) {
    prepare(target);
    if (detail::skip_finished_call(backlog_.evaluations)) return false;
    if (attempt(target, f, false)) return true;
  }
}

MUSTER_INLINE session fixed_session(group& ranks) {
  return session(std::make_unique<detail::fixed_backend>(ranks, true));
}

MUSTER_INLINE session detail::separate_session(group& ranks) {
  return session(std::make_unique<detail::fixed_backend>(ranks, false));
}

MUSTER_INLINE session fixed_session(context& parent) { return fixed_session(parent.world()); }

}}  // namespace muster::v0
