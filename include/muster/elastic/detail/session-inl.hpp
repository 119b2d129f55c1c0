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

// Returns true if the others have finished this call, and then reduces the backlog.
inline bool skip_finished_call(std::uint32_t& backlog) {
  if (backlog == 0) return false;
  --backlog;
  return true;
}

}  // namespace detail

// Ends an attempt that succeeded.
MUSTER_INLINE void session::commit(state& target, bool commits) {
  if (commits) target.exchange(backend_->ranks());
  backend_->end_attempt(true);
  if (!commits) return target.finish_evaluation();
  target.commit_step();
  backend_->committed(target);
}

// Ends an attempt that failed by the current exception, which is thrown again unless the attempt is repeated.
MUSTER_INLINE void session::recover(state& target) {
  const auto failure = std::current_exception();
  backend_->end_attempt(false);
  target.roll_back();
  backend_->recover(target, failure);
  target.require_restored();
}

// Prepares an attempt. If the backend has moved the state past the ends of calls, adds these calls to the backlog.
MUSTER_INLINE void session::prepare(state& target) {
  const auto before = target.position();
  backend_->prepare(target);
  const auto after = target.position();
  if (after.runs > before.runs) backlog_.runs += after.runs - before.runs;
  if (after.evaluations > before.evaluations) backlog_.evaluations += after.evaluations - before.evaluations;
}

MUSTER_INLINE step_run::step_run(session& runner, state& target, const run_limits& limits)
    : session_(&runner), state_(&target), limits_(limits) {
  detail::require_an_end(target, limits);
  (void)target.parts();  // owners may have added parts since
  target.set_run(std::nullopt);
}

MUSTER_INLINE step_run::~step_run() {
  if (state_->may_roll_back()) {
    session_->backend_->end_attempt(false);
    state_->roll_back();
  }
  state_->set_run(std::nullopt);
}

// Finds out whether and where the run begins.
MUSTER_INLINE void step_run::begin() {
  has_begun_ = has_ended_ = has_run_ = true;
  if (detail::skip_finished_call(session_->backlog_.runs)) return;
  session_->prepare(*state_);
  if (detail::skip_finished_call(session_->backlog_.runs)) return;
  if (const auto theirs = state_->followed_run()) {  // the others are in this run, perhaps at its end
    state_->set_run(theirs);
  } else {
    has_run_ = detail::start_epoch(*state_, limits_);
    if (!has_run_) return;
    state_->set_run(state::run_start{state_->steps(), state_->position().data.epoch});
  }
  start_ = state_->run().value();
  has_ended_ = false;
}

MUSTER_INLINE bool step_run::is_done() const {
  const auto position = state_->position();
  if (state_->epoch_is_over() || position.data.epoch != start_.epoch || detail::reached(*state_, limits_)) return true;
  return position.steps != start_.steps && limits_.every_steps != 0 && position.steps % limits_.every_steps == 0;
}

MUSTER_INLINE step* step_run::next() {
  if (!has_begun_) begin();
  if (has_ended_) return nullptr;
  if (is_done()) {
    has_ended_ = true;
    state_->finish_run();
    return nullptr;
  }
  auto& backend = *session_->backend_;
  measured_.emplace(activity::step, "step", state_->steps());
  state_->begin_step(true);
  try {
    step_.emplace(backend.ranks(), backend.generation(), state_->steps(), state_->progress());
    backend.begin_attempt();
    state_->before_step(*step_);
  } catch (...) {
    recover();
    return next();
  }
  return &*step_;
}

MUSTER_INLINE void step_run::commit() {
  session_->commit(*state_, true);
  measured_.reset();
  session_->prepare(*state_);
  if (detail::skip_finished_call(session_->backlog_.runs)) has_ended_ = true;
  (void)state_->followed_run();  // it is this run
}

MUSTER_INLINE void step_run::recover() {
  if (!state_->may_roll_back()) throw;  // the step had committed, or its changes were being adopted
  session_->recover(*state_);
  measured_.reset();
  session_->prepare(*state_);
  if (detail::skip_finished_call(session_->backlog_.runs)) has_ended_ = true;
  (void)state_->followed_run();
}

MUSTER_INLINE bool session::run_steps(state& target, const std::function<void(step&)>& f, const run_limits& limits) {
  step_run run(*this, target, limits);
  while (step* const current = run.next()) {
    try {
      f(*current);
      run.commit();
    } catch (...) {
      run.recover();
    }
  }
  return run.has_run();
}

MUSTER_INLINE bool session::evaluate_once(state& target, const std::function<void(step&)>& f) {
  (void)target.parts();
  if (detail::skip_finished_call(backlog_.evaluations)) return false;
  for (;;) {
    prepare(target);
    if (detail::skip_finished_call(backlog_.evaluations)) return false;
    const scoped_event measured(activity::step, "evaluation", target.steps());
    target.begin_step(false);
    try {
      step current(backend_->ranks(), backend_->generation(), target.steps(), target.progress());
      backend_->begin_attempt();
      f(current);
      commit(target, false);
      return true;
    } catch (...) {
      recover(target);
    }
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
