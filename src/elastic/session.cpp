#include <muster/elastic/session.hpp>

#include <muster/core/error.hpp>
#include <muster/core/events.hpp>

namespace muster::inline v0 {
namespace {

class fixed_conductor final : public detail::conductor {
 public:
  explicit fixed_conductor(group& ranks) noexcept : ranks_(&ranks) {}

  void prepare(state&) override {}
  group& ranks() override { return *ranks_; }
  std::uint64_t generation() const noexcept override { return 0; }
  void recover(state&, std::exception_ptr why) override { std::rethrow_exception(why); }
  void committed(const state&) noexcept override {}

 private:
  group* ranks_;
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

}  // namespace

bool session::attempt(state& of, const std::function<void(step&)>& f, bool commits) {
  const scoped_event measured(activity::step, commits ? "step" : "evaluation", of.steps());
  of.begin_step();
  try {
    step now(by_->ranks(), by_->generation(), of.steps(), of.progress());
    by_->attempt([&] { f(now); });
    if (commits) of.commit_step();
  } catch (...) {
    of.roll_back();
    by_->recover(of, std::current_exception());
    return false;
  }
  if (commits)
    by_->committed(of);
  else
    of.finish_evaluation();
  return true;
}

bool session::run_steps(state& of, const std::function<void(step&)>& f, const run_limits& limits) {
  require_an_end(of, limits);
  (void)of.parts();  // owners may have got more since
  by_->prepare(of);
  if (reached(of, limits)) return false;
  if (of.epoch_is_over()) {
    if (limits.epochs != 0 && of.position().at.epoch + 1 >= limits.epochs) return false;
    of.next_epoch();
    if (of.epoch_is_over()) {
      throw configuration_error(
          "an epoch of the data has no batch (it has fewer samples than one needs); choose a smaller batch");
    }
  }
  const auto begun = of.position();
  for (;;) {
    const auto here = of.position();
    const bool moved = here.steps != begun.steps;
    if (of.epoch_is_over() || here.at.epoch != begun.at.epoch || reached(of, limits)) return true;
    if (moved && limits.every != 0 && here.steps % limits.every == 0) return true;
    (void)attempt(of, f, true);
    by_->prepare(of);
  }
}

bool session::evaluate_once(state& of, const std::function<void(step&)>& f) {
  (void)of.parts();
  const auto begun = of.position();
  for (;;) {
    by_->prepare(of);
    if (of.position() != begun) return false;
    if (attempt(of, f, false)) return true;
  }
}

session fixed_session(group& ranks) { return session(std::make_unique<fixed_conductor>(ranks)); }

session fixed_session(context& of) { return fixed_session(of.world()); }

}  // namespace muster::inline v0
