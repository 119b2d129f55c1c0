#include <muster/elastic/session.hpp>

#include <muster/core/error.hpp>
#include <muster/core/events.hpp>

#include "rank_comparison.hpp"

namespace muster { inline namespace v0 {
namespace {

class fixed_backend final : public detail::session_backend {
 public:
  fixed_backend(group& ranks, bool together) noexcept : ranks_(&ranks), together_(together) {}

  void prepare(state& of) override {
    if (!together_ || began_ == &of) return;
    detail::begin_together(*ranks_, of);
    began_ = &of;
  }
  group& ranks() override { return *ranks_; }

 private:
  group* ranks_;
  bool together_;
  const state* began_ = nullptr;
};

bool reached(const state& of, const run_limits& limits) {
  return (limits.steps != 0 && of.steps() >= limits.steps) ||
         (limits.epochs != 0 && of.has_data() && of.position().at.epoch >= limits.epochs);
}

void require_an_end(const state& of, const run_limits& limits) {
  if (of.has_data() || limits.steps != 0 || limits.every != 0) return;
  throw configuration_error(
      "session.run would not end (the state has no cursor, and there is no limit on steps); give the state "
      "loader.cursor(), or the run {.steps = N}");
}

// To the start of the next epoch where one is over; false when there is nothing left to do.
bool start_epoch(state& of, const run_limits& limits) {
  if (reached(of, limits)) return false;
  if (!of.epoch_is_over()) return true;
  if (limits.epochs != 0 && of.position().at.epoch + 1 >= limits.epochs) return false;
  of.next_epoch();
  if (of.epoch_is_over()) {
    throw configuration_error(
        "an epoch of the data has no batch (it has fewer samples than one needs); choose a smaller batch");
  }
  return true;
}

// A run lasts no longer than the call, however that ends.
struct run_mark {
  explicit run_mark(state& in) noexcept : of(in) { of.set_run(std::nullopt); }
  run_mark(const run_mark&) = delete;
  run_mark& operator=(const run_mark&) = delete;
  ~run_mark() { of.set_run(std::nullopt); }
  state& of;
};

// One of the calls that others have finished is this one.
bool left_out(std::uint32_t& behind) {
  if (behind == 0) return false;
  --behind;
  return true;
}

}  // namespace

bool session::attempt(state& of, const std::function<void(step&)>& f, bool commits) {
  const scoped_event measured(activity::step, commits ? "step" : "evaluation", of.steps());
  of.begin_step(commits);
  try {
    step now(by_->ranks(), by_->generation(), of.steps(), of.progress());
    by_->attempt([&] {
      if (commits) of.meet(now);
      f(now);
      if (commits) of.exchange(by_->ranks());
    });
    if (commits) of.commit_step();
  } catch (...) {
    of.roll_back();
    by_->recover(of, std::current_exception());
    of.require_restored();
    return false;
  }
  if (commits)
    by_->committed(of);
  else
    of.finish_evaluation();
  return true;
}

// Which may have moved the state past the ends of calls.
void session::prepare(state& of) {
  const auto before = of.position();
  by_->prepare(of);
  const auto now = of.position();
  if (now.runs > before.runs) behind_.runs += now.runs - before.runs;
  if (now.evaluations > before.evaluations) behind_.evaluations += now.evaluations - before.evaluations;
}

bool session::run_steps(state& of, const std::function<void(step&)>& f, const run_limits& limits) {
  require_an_end(of, limits);
  (void)of.parts();  // owners may have got more since
  const run_mark signature(of);
  if (left_out(behind_.runs)) return true;
  prepare(of);
  if (left_out(behind_.runs)) return true;
  if (const auto theirs = of.followed_run()) {  // the others are in this run, perhaps at its end
    of.set_run(theirs);
  } else {
    if (!start_epoch(of, limits)) return false;
    of.set_run(state::run_start{of.steps(), of.position().at.epoch});
  }
  const auto began = of.run().value();
  const auto is_done = [&] {
    const auto here = of.position();
    if (of.epoch_is_over() || here.at.epoch != began.epoch || reached(of, limits)) return true;
    return here.steps != began.steps && limits.every != 0 && here.steps % limits.every == 0;
  };
  while (!is_done()) {
    (void)attempt(of, f, true);
    prepare(of);
    if (left_out(behind_.runs)) return true;
    (void)of.followed_run();  // it is this one
  }
  of.finish_run();
  return true;
}

bool session::evaluate_once(state& of, const std::function<void(step&)>& f) {
  (void)of.parts();
  if (left_out(behind_.evaluations)) return false;
  for (;;) {
    prepare(of);
    if (left_out(behind_.evaluations)) return false;
    if (attempt(of, f, false)) return true;
  }
}

session fixed_session(group& ranks) { return session(std::make_unique<fixed_backend>(ranks, true)); }

session detail::separate_session(group& ranks) { return session(std::make_unique<fixed_backend>(ranks, false)); }

session fixed_session(context& of) { return fixed_session(of.world()); }

}}  // namespace muster::v0
