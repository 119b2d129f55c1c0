// One call of training::run.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include <muster/core/clock.hpp>
#include <muster/core/progress.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/training.hpp>

#include "run_words.hpp"
#include "served.hpp"
#include "term_handler.hpp"

namespace muster { inline namespace v0 {

struct training::one_run {
  one_run(training& trained, const train_options& how, const std::function<void(training_step&)>& step);

  void train();
  void train_on_servers();
  void save_what_is_left();

 private:
  void begin_fixed();
  void refuse_what_workers_cannot() const;
  void require_equal_workers();
  void begin_on_servers();
  void go_to(const ps::lease& lease);
  void end_epochs_before(std::uint64_t epoch);
  void say_resumed();
  void say_ended(bool began_any);
  void conclude();
  bool steps(run_limits to);
  [[nodiscard]] sums of_all(group& ranks, const sums& here) const;
  void end_epoch(step& now);
  void sum_up(group& ranks);
  void take_sums(const group& ranks);
  void end_epoch_late(step& now);
  [[nodiscard]] bool was_late(step& now) const;
  void agree_to_end(step& now);
  [[nodiscard]] std::optional<bool> is_due_by_position();
  [[nodiscard]] bool is_due(step& now);
  [[nodiscard]] seconds between_saves() const;
  void save(const std::function<bool(step&)>& due_now);
  void show_progress(const step& now);

  [[nodiscard]] bool speaks() { return options.log != nullptr && of.is_root(); }
  // Epochs since the best one.
  [[nodiscard]] std::size_t since_best() const {
    std::size_t best = 0;
    for (std::size_t k = 1; k < of.epochs_.size(); ++k) {
      if (metric.is_better(of.epochs_[k][metric.name], of.epochs_[best][metric.name])) best = k;
    }
    return of.epochs_.size() - 1 - best;
  }
  [[nodiscard]] bool is_out_of_patience() const { return options.patience != 0 && since_best() >= options.patience; }
  // By what the last epoch came to: like all that ends a training, a function of the state.
  [[nodiscard]] bool is_stopped() const {
    return !of.epochs_.empty() &&
           (is_out_of_patience() || (options.max_seconds > 0 && seconds_of_epochs() >= options.max_seconds) ||
            (options.stop && options.stop(of.epochs_.back())));
  }
  [[nodiscard]] bool is_over() const {
    const auto here = of.state_.position();
    return (limits.steps != 0 && here.steps >= limits.steps) ||
           (limits.epochs != 0 && of.state_.epoch_is_over() && here.at.epoch + 1 >= limits.epochs) || is_stopped();
  }
  [[nodiscard]] double seconds_of_epochs() const {
    double all = 0;
    for (const auto& epoch : of.epochs_) all += epoch.seconds;
    return all;
  }
  [[nodiscard]] bool is_measured() const { return !of.epochs_.empty() && of.measured_at_ == of.state_.steps(); }
  [[nodiscard]] double goodness() const {
    return is_measured() ? of.epochs_.back()[metric.name] : std::numeric_limits<double>::quiet_NaN();
  }

  training& of;
  const train_options& options;
  const std::function<void(training_step&)>& f;
  const detail::interval every;
  const detail::metric_of metric;
  std::optional<checkpoint> store;
  std::optional<detail::term_handler> handler;
  run_limits limits;
  progress_line progress;
  std::optional<std::uint64_t> epochs_ended;  // with servers: those before that one were reported
  std::uint64_t ends = 0;                     // the ranks agree that one was told to
  std::uint64_t late = 0;                     // 1: the first thing done was the end of an epoch
  clock::time_point saved_at = clock::now();
  seconds save_cost{};
  clock::time_point began{};     // the steps since the last look at SIGTERM
  std::uint64_t began_with = 0;  // so many steps
  double took = 0;
};

}}  // namespace muster::v0
