#include "training_run.hpp"

#include <algorithm>
#include <cinttypes>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/transports/local.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/log.hpp>
#include <muster/elastic/departure.hpp>
#include <muster/train/sync/sync_mode.hpp>

#include "../core/text.hpp"
#include "../elastic/rank_comparison.hpp"
#include "speed_balance.hpp"

namespace muster { inline namespace v0 {
namespace {

// Where checkpoints go by the clock, ranks agree what it says after so many steps: a broadcast each time.
constexpr std::uint64_t steps_between_looks = 100;

// Where no failure was seen yet, one is expected within so long: an assumption, which failures correct.
constexpr seconds first_failure_within = std::chrono::hours(24);

// Ranks agree so often, in seconds, whether one of them was told to end.
constexpr double between_agreements = 1.0;

// The largest divisor of `count` that is not above `most`.
std::uint64_t divisor_of(std::uint64_t count, std::uint64_t most) {
  std::uint64_t found = std::min(count, most);
  while (count % found != 0) --found;
  return found;
}

void write_line(std::FILE* to, const epoch_summary& of) {
  std::string text = "epoch " + std::to_string(of.epoch) + ": ";
  for (const auto& [name, value] : of.reports) text += name + detail::printed(" %.6g, ", value);
  std::fprintf(to, "%s%" PRIu64 " samples in %.3g s\n", text.c_str(), of.samples, of.seconds);
  std::fflush(to);
}

}  // namespace

training::one_run::one_run(training& trained, const train_options& how, const std::function<void(training_step&)>& step)
    : of(trained),
      options(how),
      f(step),
      every(detail::parse_interval(how.checkpoint_every)),
      metric(detail::parse_metric(how.metric)),
      limits{.epochs = how.epochs, .steps = how.steps, .every = 0},
      progress(how.log != nullptr) {
  if (how.epochs == 0 && how.steps == 0) {
    throw configuration_error("a training would not end (there is no limit); give {.epochs = N} or {.steps = N}");
  }
  if (of.on_servers_) {
    refuse_what_workers_cannot();
    return;
  }
  if (!how.checkpoint.empty())
    store.emplace(how.checkpoint, checkpoint_options{.keep = how.keep, .smaller_is_better = !metric.up});
  of.own_updates_.must_repeat = store.has_value() || of.context_.elastic();
  // An elastic session hears of SIGTERM by itself, and its limits have to stay: a rank that joins has no others.
  if (!of.context_.elastic()) {
    handler.emplace();
    limits.every = 1;
  } else if (store && every.unit != detail::interval::epochs) {
    limits.every = every.unit == detail::interval::steps ? every.count : steps_between_looks;
  }
}

// Its last word is the change of what no shadow puts back.
void training::one_run::end_epoch(step& now) {
  if (!of.on_servers_) detail::require_equal_replicas(now.group(), of.state_);
  sums here = of.here_;
  if (options.each_epoch) {
    const scoped_event measured(activity::phase, to_string(phase::metrics), 0);
    of.sync_.average(now.group());
    if (of.served_ && !of.served_->is_sparse()) of.served_->pull();
    training_step evaluation(of, now);
    options.each_epoch(evaluation);
    here.add(std::exchange(of.of_step_, {}));
  }
  here = of_all(now.group(), here);
  epoch_summary made{of.state_.position().at.epoch + 1, here.samples, here.seconds};
  for (const auto& one : here.of) {
    if (one.weights != 0) made.reports.emplace_back(one.name, one.values / one.weights);
  }
  const double value = made[metric.name];
  if (options.patience != 0 && std::isnan(value)) {
    throw configuration_error("the training waits for '" + metric.name +
                              "' to become better (the epoch did not report it); report it, or name another "
                              R"(metric, such as "loss down")");
  }
  if (of.tracker_ != nullptr) {
    (void)of.tracker_->end_epoch(now.group(), {.train_loss = made["loss"],
                                               .val_loss = made["val_loss"],
                                               .val_accuracy = made["val_accuracy"],
                                               .train_accuracy = made["train_accuracy"]});
  }
  of.here_ = {};
  of.epochs_.push_back(std::move(made));
  of.measured_at_ = of.state_.steps();
  if (of.schedule_ != nullptr && !std::isnan(value)) of.schedule_->observe(value);
  progress.clear();
  if (options.log == nullptr || now.group().rank() != 0) return;
  if (options.print)
    options.print(of.epochs_.back());
  else
    write_line(options.log, of.epochs_.back());
}

// Where its evaluation failed, the state of its last step was saved without it.
void training::one_run::end_epoch_late(step& now) {
  const auto steps = of.state_.steps();
  take_sums(now.group());
  late = steps > 0 && !is_measured() && (of.state_.epoch_is_over() || steps == limits.steps) ? 1 : 0;
  if (late != 0) end_epoch(now);
}

// As rank 0 knows: a rank that failed in it, or has joined since, does not.
bool training::one_run::was_late(step& now) const {
  if (of.state_.steps() == 0 || !is_measured()) return false;
  std::uint64_t known = late;
  broadcast(now.group(), known, 0);
  return known != 0;
}

void training::one_run::agree_to_end(step& now) {
  if (of.context_.elastic()) return;
  ends = allreduce(now.group(), std::uint64_t{detail::told_to_end ? 1u : 0u}, muster::max);
  if (options.max_seconds > 0) {
    double trained = of.here_.seconds + seconds_of_epochs();
    broadcast(now.group(), trained, 0);
    if (trained >= options.max_seconds) limits.steps = of.state_.steps();
  }
  const auto steps = static_cast<double>(of.state_.steps() - began_with);
  auto next = static_cast<std::uint64_t>(std::clamp(steps * between_agreements / std::max(took, 1e-6), 1.0, 1e6));
  broadcast(now.group(), next, 0);
  limits.every = store && every.unit == detail::interval::steps ? divisor_of(every.count, next) : next;
}

// Nothing where the clock decides.
std::optional<bool> training::one_run::is_due_by_position() {
  if (is_over() || ends != 0) return true;
  if (options.patience != 0 && of.state_.epoch_is_over() && since_best() == 0) return true;
  if (every.unit == detail::interval::epochs)
    return of.state_.epoch_is_over() && (of.state_.position().at.epoch + 1) % every.count == 0;
  if (every.unit == detail::interval::steps) return of.state_.steps() % every.count == 0;
  return std::nullopt;
}

bool training::one_run::is_due(step& now) {
  if (const auto due = is_due_by_position()) return *due;
  std::uint8_t due = clock::now() - saved_at >= between_saves() ? 1 : 0;
  broadcast(now.group(), std::span(&due, 1), 0);
  return due != 0;
}

// A first one is written to know its cost.
seconds training::one_run::between_saves() const {
  if (every.unit == detail::interval::minutes) return std::chrono::minutes(every.count);
  if (save_cost.count() == 0) return {};
  const seconds trained{of.here_.seconds + seconds_of_epochs()};
  return checkpoint_interval(save_cost, (first_failure_within + trained) / (1.0 + static_cast<double>(of.failures_)));
}

void training::one_run::save(const std::function<bool(step&)>& due_now) {
  clock::time_point due_at{};
  store->save(of.session_, of.state_, goodness(), [&](step& now) {
    due_at = clock::now();
    const bool due = due_now(now);
    of.goes_on_ = due && !is_over() && ends == 0;
    if (!due) return save_kind::none;
    detail::require_equal_replicas(now.group(), of.state_);
    sum_up(now.group());
    saved_at = due_at;
    return of.goes_on_ ? save_kind::in_background : save_kind::and_wait;
  });
  if (saved_at == due_at) save_cost = clock::now() - due_at;
}

void training::one_run::show_progress(const step& now) {
  const double spent = of.here_.seconds + seconds_since(began);
  const double done = static_cast<double>(of.data_.step() + 1), all = static_cast<double>(of.data_.steps_per_epoch());
  const auto loss = std::ranges::find(of.here_.of, "loss", &sum::name);
  const auto seen = loss != of.here_.of.end() ? detail::printed("loss %.4f, ", loss->values / loss->weights) : "";
  progress.update(detail::printed("epoch %" PRIu64 ", step %.0f of %.0f, %.0f samples/s, %s%.0f s to go",
                                  now.epoch() + 1, done, all, static_cast<double>(of.here_.samples) / spent,
                                  seen.c_str(), spent / done * (all - done)));
}

void training::one_run::say_resumed() {
  if (is_over() || !speaks()) return;
  std::fprintf(options.log, "resumes after step %" PRIu64 ", in epoch %" PRIu64 "\n", of.state_.steps(),
               of.state_.position().at.epoch + 1);
}

bool training::one_run::steps(run_limits to) {
  std::optional<tracker::batch_clock> batches;
  if (of.tracker_ != nullptr) batches.emplace(*of.tracker_);
  began = clock::now();
  began_with = of.state_.steps();
  if (is_stopped()) to.steps = of.state_.steps();
  const bool ran = of.session_.run(
      of.state_,
      [&](step& now) {
        training_step one(of, now);
        const auto work = [&] {
          f(one);
          return of.of_step_.own_samples;
        };
        of.balance_ ? of.balance_->measure(work) : static_cast<void>(work());
        if (progress.active() && of.is_root()) show_progress(now);
      },
      to);
  took = seconds_since(began);
  of.here_.seconds += took;
  return ran;
}

// A rank that joins an elastic job may be at an earlier run of the program than the others: there these may differ.
void training::one_run::begin_fixed() {
  of.session_ = fixed_session(of.context_);
  detail::require_equal_properties(
      of.session_.group(),
      {{"the last epoch", std::to_string(options.epochs)},
       {"the last step", std::to_string(options.steps)},
       {"the limit of seconds", detail::printed("%g", options.max_seconds)},
       {"the metric", options.metric},
       {"the patience", std::to_string(options.patience)},
       {"the writing of checkpoints", options.checkpoint.empty() ? "off" : options.checkpoint_every},
       {"the resumption from checkpoints", options.resume ? "on" : "off"}});
}

// Which calls follow one another does not depend on the state, for a rank that joins has another one when it leaves
// out those that the others have behind them; what they do does.
void training::one_run::train() {
  of.meet_ = options.each_group;
  if (!of.context_.elastic()) begin_fixed();
  if (options.each_group && !of.context_.elastic()) options.each_group(of.session_.group(), false);
  if (store && options.resume && store->load(of.session_, of.state_)) say_resumed();
  (void)of.session_.evaluate(of.state_, [&](step& now) { end_epoch_late(now); });
  if (store) save([this](step& now) { return was_late(now); });
  bool began_any = late != 0;
  for (; steps(limits); began_any = true) {
    (void)of.session_.evaluate(of.state_, [&](step& now) {
      agree_to_end(now);
      if (of.state_.epoch_is_over() || is_over()) end_epoch(now);
    });
    if (store) save([this](step& now) { return is_due(now); });
    if (ends != 0 && !is_over()) {
      throw elastic::departure(elastic::exit_reason::left,
                               "the training was stopped by SIGTERM, after " + std::to_string(of.state_.steps()) +
                                   " steps (" +
                                   (store ? "they are saved in '" + options.checkpoint + "'" : "nothing was saved") +
                                   "); start the same command to resume");
    }
  }
  say_ended(began_any);
  conclude();
}

void training::one_run::conclude() {
  if (!options.at_end && !of.on_servers_) return;
  (void)of.evaluate_once([&](step& now) {
    of.sync_.average(now.group());
    if (of.on_servers_ && !of.served_->is_sparse()) of.served_->pull();
    training_step end(of, now);
    if (options.at_end) options.at_end(end);
  });
}

void training::one_run::say_ended(bool began_any) {
  if (!speaks()) return;
  if (!began_any && !options.checkpoint.empty()) {
    std::fprintf(options.log, "nothing to do: the training in '%s' has ended, after %" PRIu64 " steps\n",
                 options.checkpoint.c_str(), of.state_.steps());
  } else if (!of.epochs_.empty() && is_out_of_patience()) {
    std::fprintf(options.log, "ends: %s was best in epoch %zu\n", metric.name.c_str(),
                 of.epochs_.size() - since_best());
  }
}

void training::one_run::save_what_is_left() {
  if (!store) return;
  const auto mode = of.sync_.options().mode.what;
  if ((mode == sync_mode::kind::local_sgd || mode == sync_mode::kind::gossip) && of.session_.group().size() > 1) {
    log(log_level::warning, "step " + std::to_string(of.state_.steps()) +
                                " is not saved (each rank has weights of its own, and one alone cannot save them); the "
                                "same command resumes from the last checkpoint in " +
                                store->folder());
    return;
  }
  try {
    group self(make_self_transport());  // the others may be gone, or about to be
    auto alone = fixed_session(self);
    sum_up(self);
    store->save(alone, of.state_, goodness());
    set_log_rank(0);  // alone now, and heard
    log(log_level::warning, "saved after step " + std::to_string(of.state_.steps()) + " in " + store->folder() +
                                "; the same command resumes from there");
  } catch (const std::exception& failed) {  // no reason to hide why the job ended
    log(log_level::error, std::string("the state could not be saved: ") + failed.what());
  }
}

void training::run(const train_options& options, const std::function<void(training_step&)>& f) {
  one_run now(*this, options, f);
  ran_ = true;
  if (on_servers_) return now.train_on_servers();
  try {
    now.train();
  } catch (const elastic::departure& gone) {
    if (gone.should_save()) now.save_what_is_left();
    throw;
  } catch (const error& failed) {
    // A database or a server that is away comes back. Another rank's failure has the status with which that one ends.
    if (failed.exit_status() == static_cast<int>(error_kind::data) && state_.steps() > 0 && is_root())
      now.save_what_is_left();
    throw;
  }
}

}}  // namespace muster::v0
