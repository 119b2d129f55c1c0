// The state of a call of training::run.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/core/progress.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/training.hpp>

#include <muster/train/option_parsers.hpp>
#include <muster/train/parameter_server_backend.hpp>
#include <muster/train/term_handler.hpp>

namespace muster { inline namespace v0 {

struct training::training_run {
  training_run(training& trained, const train_options& run_options,
               const std::function<void(training_step&)>& run_step);

  void train();
  void train_on_servers();
  void save_remaining();

  // Returns the course of a training for its state. `restore_course` sets the course from these bytes.
  [[nodiscard]] static std::vector<std::byte> saved_course(const training& source);
  static void restore_course(training& target, std::span<const std::byte> bytes);
  // Returns true if all ranks count the same samples. In other modes each rank counts its own, and only the sums of a
  // save contain all.
  [[nodiscard]] static bool counts_all_samples(const training& owner) {
    return owner.sync_.options().mode.method == sync_mode::kind::allreduce;
  }

 private:
  void begin_fixed();
  void require_worker_options() const;
  [[nodiscard]] std::optional<std::uint64_t> digest_of_parameters(const step& current) const;
  void require_unchanged(std::optional<std::uint64_t> before, const step& current) const;
  void begin_on_servers();
  void move_to_lease(const ps::lease& lease);
  void end_epochs_before(std::uint64_t epoch);
  void print_resumed();
  void print_ended(bool began_any);
  void conclude();
  bool steps(run_limits step_limits);
  [[nodiscard]] sums sum_over_ranks(group& ranks, const sums& local) const;
  void end_epoch(step& current);
  void update_saved_sums(group& ranks);
  void restore_sums(const group& ranks);
  void end_epoch_late(step& current);
  [[nodiscard]] bool was_late(step& current) const;
  void agree_to_end(step& current);
  [[nodiscard]] std::optional<bool> is_due_by_position();
  [[nodiscard]] bool is_due(step& current);
  [[nodiscard]] seconds between_saves() const;
  void save(const std::function<bool(step&)>& due_now);
  void show_progress(const step& current);
  [[nodiscard]] double steps_to_end(const step& current) const;

  [[nodiscard]] bool prints() { return options.log != nullptr && owner.is_root(); }
  // Returns the number of epochs since the best epoch.
  [[nodiscard]] std::size_t since_best() const {
    std::size_t best = 0;
    for (std::size_t k = 1; k < owner.epochs_.size(); ++k) {
      if (metric.is_better(owner.epochs_[k][metric.name], owner.epochs_[best][metric.name])) best = k;
    }
    return owner.epochs_.size() - 1 - best;
  }
  [[nodiscard]] bool is_out_of_patience() const { return options.patience != 0 && since_best() >= options.patience; }
  // Returns true if the result of the last epoch ends the training. Like every condition for the end, a function of the
  // state.
  [[nodiscard]] bool is_stopped() const {
    return !owner.epochs_.empty() &&
           (is_out_of_patience() || (options.max_seconds > 0 && seconds_of_epochs() >= options.max_seconds) ||
            (options.stop && options.stop(owner.epochs_.back())));
  }
  [[nodiscard]] bool is_over() const {
    const auto position = owner.state_.position();
    return (limits.steps != 0 && position.steps >= limits.steps) ||
           (limits.epochs != 0 && owner.state_.epoch_is_over() && position.data.epoch + 1 >= limits.epochs) ||
           is_stopped();
  }
  [[nodiscard]] double seconds_of_epochs() const {
    double all = 0;
    for (const auto& epoch : owner.epochs_) all += epoch.seconds;
    return all;
  }
  [[nodiscard]] bool is_measured() const {
    return !owner.epochs_.empty() && owner.measured_at_ == owner.state_.steps();
  }
  [[nodiscard]] double goodness() const {
    return is_measured() ? owner.epochs_.back()[metric.name] : std::numeric_limits<double>::quiet_NaN();
  }

  training& owner;
  const train_options& options;
  const std::function<void(training_step&)>& step_function;
  const detail::interval every;
  const detail::metric_spec metric;
  std::optional<checkpoint> store;
  std::optional<detail::term_handler> handler;
  run_limits limits;
  progress_line progress;
  std::optional<std::uint64_t> epochs_ended;  // in mode ps: number of epochs that were reported
  std::uint64_t stop_requested = 0;           // 1: the ranks agree that SIGTERM was received
  std::uint64_t ended_late = 0;               // 1: the run began with the delayed end of an epoch
  clock::time_point saved_at = clock::now();
  seconds save_cost{};
  clock::time_point began{};     // start of the steps since the last check for SIGTERM
  std::uint64_t began_with = 0;  // number of committed steps at that time
  double run_seconds = 0;        // duration of the steps in seconds
};

}}  // namespace muster::v0
