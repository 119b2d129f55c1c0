#pragma once

#include <muster/train/training_run.hpp>

#include <algorithm>
#include <bit>
#include <cinttypes>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/text.hpp>
#include <muster/elastic/departure.hpp>
#include <muster/elastic/rank_comparison.hpp>
#include <muster/train/speed_balance.hpp>
#include <muster/train/sync/sync_mode.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// Number of steps after which ranks agree on rank 0's clock, by a broadcast, when the interval of checkpoints is a
// time.
inline constexpr std::uint64_t steps_between_looks = 100;

// Time until the first failure, which is assumed before any failure has occurred. Later failures correct the
// assumption.
inline constexpr seconds first_failure_within = std::chrono::hours(24);

// Interval in seconds at which ranks agree whether any rank has received SIGTERM.
inline constexpr double between_agreements = 1.0;

// Returns the largest divisor of `count` that is not above `most`.
MUSTER_INLINE std::uint64_t divisor_of(std::uint64_t count, std::uint64_t most) {
  std::uint64_t found = std::min(count, most);
  while (count % found != 0) --found;
  return found;
}

MUSTER_INLINE void write_line(std::FILE* log_file, const epoch_summary& summary) {
  std::string text = "epoch " + std::to_string(summary.epoch) + ": ";
  for (const auto& [name, value] : summary.reports) text += name + detail::printed(" %.6g, ", value);
  std::fprintf(log_file, "%s%" PRIu64 " samples in %.3g s\n", text.c_str(), summary.samples, summary.seconds);
  std::fflush(log_file);
}

}  // namespace detail

MUSTER_INLINE training::training_run::training_run(training& trained, const train_options& run_options,
                                                   const std::function<void(training_step&)>& run_step)
    : owner(trained),
      options(run_options),
      step_function(run_step),
      every(detail::parse_interval(run_options.checkpoint_every)),
      metric(detail::parse_metric(run_options.metric)),
      limits{.epochs = run_options.epochs, .steps = run_options.steps, .every_steps = 0},
      progress(run_options.log != nullptr) {
  if (run_options.epochs == 0 && run_options.steps == 0) {
    throw configuration_error("a training would not end (there is no limit); give {.epochs = N} or {.steps = N}");
  }
  if (owner.on_servers_) {
    require_worker_options();
    return;
  }
  if (!run_options.checkpoint.empty())
    store.emplace(run_options.checkpoint,
                  checkpoint_options{.keep = run_options.keep, .smaller_is_better = !metric.up});
  owner.own_updates_.must_repeat = store.has_value() || owner.context_.elastic();
  // An elastic session handles SIGTERM itself, and its limits must not change: a rank that joins would have other
  // limits.
  if (!owner.context_.elastic()) {
    handler.emplace();
    limits.every_steps = 1;
  } else if (store && every.unit != detail::interval::epochs) {
    limits.every_steps = every.unit == detail::interval::steps ? every.count : detail::steps_between_looks;
  }
}

// Ends an epoch. The last operations change data that no shadow restores.
MUSTER_INLINE void training::training_run::end_epoch(step& current) {
  if (!owner.on_servers_) detail::require_equal_replicas(current.group(), owner.state_);
  sums totals = owner.unreported_;
  if (options.each_epoch) {
    const scoped_event measured(activity::phase, to_string(phase::metrics), 0);
    owner.sync_.average(current.group());
    if (owner.servers_ && !owner.servers_->is_sparse()) owner.servers_->pull();
    training_step evaluation(owner, current);
    options.each_epoch(evaluation);
    totals.add(std::exchange(owner.step_sums_, {}));
  }
  totals = sum_over_ranks(current.group(), totals);
  epoch_summary summary{owner.state_.position().data.epoch + 1, totals.samples, totals.seconds};
  for (const auto& entry : totals.entries) {
    if (entry.weights != 0) summary.reports.emplace_back(entry.name, entry.values / entry.weights);
  }
  const double value = summary[metric.name];
  if (options.patience != 0 && std::isnan(value)) {
    throw configuration_error("the training waits for '" + metric.name +
                              "' to improve (the epoch did not report it); report it, or name another "
                              R"(metric, such as "loss down")");
  }
  if (owner.tracker_ != nullptr) {
    (void)owner.tracker_->end_epoch(current.group(), {.train_loss = summary["loss"],
                                                      .val_loss = summary["val_loss"],
                                                      .val_accuracy = summary["val_accuracy"],
                                                      .train_accuracy = summary["train_accuracy"]});
  }
  owner.unreported_ = {};
  owner.epochs_.push_back(std::move(summary));
  owner.measured_at_ = owner.state_.steps();
  if (owner.schedule_ != nullptr && !std::isnan(value)) owner.schedule_->observe(value);
  progress.clear();
  if (current.group().rank() != 0) return;
  if (options.print)
    options.print(owner.epochs_.back());
  else if (options.log != nullptr)
    detail::write_line(options.log, owner.epochs_.back());
}

// Ends an epoch whose evaluation failed after the state of its last step was saved.
MUSTER_INLINE void training::training_run::end_epoch_late(step& current) {
  const auto steps = owner.state_.steps();
  restore_sums(current.group());
  ended_late = steps > 0 && !is_measured() && (owner.state_.epoch_is_over() || steps == limits.steps) ? 1 : 0;
  if (ended_late != 0) end_epoch(current);
}

// Returns rank 0's value: a rank that failed in the evaluation, or joined since, does not know it.
MUSTER_INLINE bool training::training_run::was_late(step& current) const {
  if (owner.state_.steps() == 0 || !is_measured()) return false;
  std::uint64_t rank_0_late = ended_late;
  broadcast(current.group(), rank_0_late, 0);
  return rank_0_late != 0;
}

MUSTER_INLINE void training::training_run::agree_to_end(step& current) {
  if (owner.context_.elastic()) return;
  stop_requested = allreduce(current.group(), std::uint64_t{detail::termination_requested ? 1u : 0u}, muster::max);
  if (options.max_seconds > 0) {
    double trained = owner.unreported_.seconds + seconds_of_epochs();
    broadcast(current.group(), trained, 0);
    if (trained >= options.max_seconds) limits.steps = owner.state_.steps();
  }
  const auto steps = static_cast<double>(owner.state_.steps() - began_with);
  auto next = static_cast<std::uint64_t>(
      std::clamp(steps * detail::between_agreements / std::max(run_seconds, 1e-6), 1.0, 1e6));
  broadcast(current.group(), next, 0);
  limits.every_steps = store && every.unit == detail::interval::steps ? detail::divisor_of(every.count, next) : next;
}

// Returns nothing where the clock decides.
MUSTER_INLINE std::optional<bool> training::training_run::is_due_by_position() {
  if (is_over() || stop_requested != 0) return true;
  if (options.patience != 0 && owner.state_.epoch_is_over() && since_best() == 0) return true;
  if (every.unit == detail::interval::epochs)
    return owner.state_.epoch_is_over() && (owner.state_.position().data.epoch + 1) % every.count == 0;
  if (every.unit == detail::interval::steps) return owner.state_.steps() % every.count == 0;
  return std::nullopt;
}

MUSTER_INLINE bool training::training_run::is_due(step& current) {
  if (const auto due = is_due_by_position()) return *due;
  std::uint8_t due = clock::now() - saved_at >= between_saves() ? 1 : 0;
  broadcast(current.group(), std::span(&due, 1), 0);
  return due != 0;
}

// Returns the interval between saves. The first save is due at once, to measure its cost.
MUSTER_INLINE seconds training::training_run::between_saves() const {
  if (every.unit == detail::interval::minutes) return std::chrono::minutes(every.count);
  if (save_cost.count() == 0) return {};
  const seconds trained{owner.unreported_.seconds + seconds_of_epochs()};
  return checkpoint_interval(save_cost,
                             (detail::first_failure_within + trained) / (1.0 + static_cast<double>(owner.failures_)));
}

MUSTER_INLINE void training::training_run::save(const std::function<bool(step&)>& due_now) {
  clock::time_point due_at{};
  store->save(owner.session_, owner.state_, goodness(), [&](step& current) {
    due_at = clock::now();
    const bool due = due_now(current);
    owner.continues_ = due && !is_over() && stop_requested == 0;
    if (!due) return save_kind::none;
    detail::require_equal_replicas(current.group(), owner.state_);
    update_saved_sums(current.group());
    saved_at = due_at;
    return owner.continues_ ? save_kind::in_background : save_kind::and_wait;
  });
  if (saved_at == due_at) save_cost = clock::now() - due_at;
}

// Returns the number of steps from the epoch's begin to the training's end, or to the epoch's end if a time or a metric
// ends the training.
MUSTER_INLINE double training::training_run::steps_to_end(const step& current) const {
  const auto each = static_cast<double>(owner.data_.steps_per_epoch());
  double left = limits.epochs > current.epoch() ? static_cast<double>(limits.epochs - current.epoch()) * each : each;
  if (options.steps != 0 && options.steps >= current.number()) {
    const auto by_steps =
        static_cast<double>(owner.data_.step()) + static_cast<double>(options.steps - current.number());
    left = limits.epochs != 0 ? std::min(left, by_steps) : by_steps;
  }
  return left;
}

MUSTER_INLINE void training::training_run::show_progress(const step& current) {
  const double spent = owner.unreported_.seconds + seconds_since(began);
  const double done = static_cast<double>(owner.data_.step() + 1);
  const auto loss = std::ranges::find(owner.unreported_.entries, "loss", &sum::name);
  const auto shown_loss =
      loss != owner.unreported_.entries.end() ? detail::printed("loss %.4f, ", loss->values / loss->weights) : "";
  progress.update(detail::printed("epoch %" PRIu64 ", step %.0f of %.0f, %.0f samples/s, %s%s to go",
                                  current.epoch() + 1, done, static_cast<double>(owner.data_.steps_per_epoch()),
                                  static_cast<double>(owner.unreported_.samples) / spent, shown_loss.c_str(),
                                  detail::duration_text(spent / done * (steps_to_end(current) - done)).c_str()));
}

MUSTER_INLINE void training::training_run::print_resumed() {
  if (is_over() || !prints()) return;
  std::fprintf(options.log, "resumes after step %" PRIu64 ", in epoch %" PRIu64 "\n", owner.state_.steps(),
               owner.state_.position().data.epoch + 1);
}

// Returns a digest of the parameters in steps 1, 2, 4, 8, ... of an elastic job in mode allreduce; nothing in other
// steps, and in the modes that restore the parameters of a failed step.
MUSTER_INLINE std::optional<std::uint64_t> training::training_run::digest_of_parameters(const step& current) const {
  const auto* const values = dynamic_cast<const arena*>(&owner.sync_.base_arena());
  if (values == nullptr || !owner.context_.elastic() || owner.on_servers_ ||
      owner.sync_.options().mode.method != sync_mode::kind::allreduce || !std::has_single_bit(current.number() + 1))
    return std::nullopt;
  return detail::digest_of_bytes(std::as_bytes(values->parameters()));
}

// A failed step would keep such changes, and its repetition would add them again.
MUSTER_INLINE void training::training_run::require_unchanged(std::optional<std::uint64_t> before,
                                                             const step& current) const {
  if (!before || digest_of_parameters(current) == before) return;
  throw configuration_error(
      "a step changed parameters before its commit (if it fails, its changes stay and it runs again); change them, "
      "also "
      "by clipping or a projection, in step.update([&] { ... }), or give update() an optimizer");
}

MUSTER_INLINE bool training::training_run::steps(run_limits step_limits) {
  std::optional<tracker::batch_clock> batches;
  if (owner.tracker_ != nullptr) batches.emplace(*owner.tracker_);
  began = clock::now();
  began_with = owner.state_.steps();
  if (is_stopped()) step_limits.steps = owner.state_.steps();
  const bool ran = owner.session_.run(
      owner.state_,
      [&](step& current) {
        training_step view(owner, current);
        const auto work = [&] {
          step_function(view);
          return owner.step_sums_.own_samples;
        };
        const auto before = digest_of_parameters(current);
        owner.balance_ ? owner.balance_->measure(work) : static_cast<void>(work());
        require_unchanged(before, current);
        if (owner.is_root() && progress.is_due()) show_progress(current);
      },
      step_limits);
  run_seconds = seconds_since(began);
  owner.unreported_.seconds += run_seconds;
  return ran;
}

// A rank that joins an elastic job may run an earlier `run` of the program than the other ranks, so an elastic job does
// not compare these properties.
MUSTER_INLINE void training::training_run::begin_fixed() {
  owner.session_ = fixed_session(owner.context_);
  detail::require_equal_properties(
      owner.session_.group(),
      {{"the last epoch", std::to_string(options.epochs)},
       {"the last step", std::to_string(options.steps)},
       {"the limit of seconds", detail::printed("%g", options.max_seconds)},
       {"the metric", options.metric},
       {"the patience", std::to_string(options.patience)},
       {"the writing of checkpoints", options.checkpoint.empty() ? "off" : options.checkpoint_every},
       {"the resumption from checkpoints", options.resume ? "on" : "off"}});
}

// The sequence of collective calls must not depend on the state: a rank that joins has another state when it skips the
// calls that the other ranks have completed. The effects of the calls may depend on the state.
MUSTER_INLINE void training::training_run::train() {
  owner.each_group_ = options.each_group;
  if (!owner.context_.elastic()) begin_fixed();
  if (options.each_group && !owner.context_.elastic()) options.each_group(owner.session_.group(), false);
  if (store && options.resume && store->load(owner.session_, owner.state_)) print_resumed();
  (void)owner.session_.evaluate(owner.state_, [&](step& current) { end_epoch_late(current); });
  if (store) save([this](step& current) { return was_late(current); });
  bool began_any = ended_late != 0;
  for (; steps(limits); began_any = true) {
    (void)owner.session_.evaluate(owner.state_, [&](step& current) {
      agree_to_end(current);
      if (owner.state_.epoch_is_over() || is_over()) end_epoch(current);
    });
    if (store) save([this](step& current) { return is_due(current); });
    if (stop_requested != 0 && !is_over()) {
      throw elastic::departure(elastic::exit_reason::left,
                               "the training was stopped by SIGTERM, after " + std::to_string(owner.state_.steps()) +
                                   " steps (" +
                                   (store ? "they are saved in '" + options.checkpoint + "'" : "nothing was saved") +
                                   "); start the same command to resume");
    }
  }
  print_ended(began_any);
  conclude();
}

MUSTER_INLINE void training::training_run::conclude() {
  if (!options.at_end && !owner.on_servers_) return;
  (void)owner.evaluate_once([&](step& current) {
    owner.sync_.average(current.group());
    if (owner.on_servers_ && !owner.servers_->is_sparse()) owner.servers_->pull();
    training_step end(owner, current);
    if (options.at_end) options.at_end(end);
  });
}

MUSTER_INLINE void training::training_run::print_ended(bool began_any) {
  if (!prints()) return;
  if (!began_any && !options.checkpoint.empty()) {
    std::fprintf(options.log, "nothing to do: the training in '%s' has ended, after %" PRIu64 " steps\n",
                 options.checkpoint.c_str(), owner.state_.steps());
  } else if (!owner.epochs_.empty() && is_out_of_patience()) {
    std::fprintf(options.log, "ends: %s was best in epoch %zu\n", metric.name.c_str(),
                 owner.epochs_.size() - since_best());
  }
}

MUSTER_INLINE void training::training_run::save_remaining() {
  if (!store) return;
  const auto mode = owner.sync_.options().mode.method;
  if ((mode == sync_mode::kind::local_sgd || mode == sync_mode::kind::gossip) && owner.session_.group().size() > 1) {
    log(log_level::warning, "step " + std::to_string(owner.state_.steps()) +
                                " is not saved (each rank has different weights, and one rank alone cannot save them); "
                                "the same command resumes from the last checkpoint in " +
                                store->folder());
    return;
  }
  try {
    group self(make_self_transport());  // the other ranks may have ended, or be about to end
    auto alone = fixed_session(self);
    update_saved_sums(self);
    store->save(alone, owner.state_, goodness());
    set_log_rank(0);  // this rank is now alone, and its warnings must be printed
    log(log_level::warning, "saved after step " + std::to_string(owner.state_.steps()) + " in " + store->folder() +
                                "; the same command resumes from there");
  } catch (const std::exception& failed) {  // a failed save must not hide the reason for the job's end
    log(log_level::error, std::string("the state could not be saved: ") + failed.what());
  }
}

MUSTER_INLINE void training::run(const train_options& options, const std::function<void(training_step&)>& f) {
  training_run current_run(*this, options, f);
  ran_ = true;
  if (on_servers_) return current_run.train_on_servers();
  try {
    current_run.train();
  } catch (const elastic::departure& departed) {
    if (departed.should_save()) current_run.save_remaining();
    throw;
  } catch (const error& failed) {
    // A database or server may become available again. Another rank's failure has that rank's exit status.
    const auto is_of = [&](error_kind kind) { return failed.exit_status() == static_cast<int>(kind); };
    if ((is_of(error_kind::data) || is_of(error_kind::source)) && state_.steps() > 0 && is_root())
      current_run.save_remaining();
    throw;
  }
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
