#include "report.hpp"

#include <cstdio>
#include <string>

#include "../job.hpp"

namespace logistic {

void print_header(const problem& data, const options& chosen, std::string_view ranks) {
  std::printf("%zu training and %zu test samples of %zu features (%s), %s\n%s\n", data.train.data.size(),
              data.test.data.size(), data.features, data.train.data.is_sparse() ? "sparse" : "dense",
              std::string(ranks).c_str(), describe(chosen).c_str());
  std::printf("\nepoch  train loss   test loss  accuracy   seconds   samples/s\n");
  std::fflush(stdout);
}

void print_epoch(const muster::tracker& tracker) {
  const auto& report = tracker.epochs().back();
  std::printf("%5zu  %10.6g  %10.6g  %8.4f  %8.3f  %10.3g\n", tracker.epochs().size(), report.metrics.train_loss,
              report.metrics.val_loss, report.metrics.val_accuracy, report.train_seconds, report.samples_per_second());
  std::fflush(stdout);
}

void print_results(const muster::tracker& tracker, const options& chosen, double objective,
                   std::optional<double> final_accuracy) {
  const auto& epochs = tracker.epochs();
  if (epochs.empty()) {
    std::printf("nothing was left to train\n");
    return;
  }
  muster::epoch_report all;
  for (const auto& epoch : epochs) {
    all.samples += epoch.samples;
    all.train_seconds += epoch.train_seconds;
    all.compute_seconds += epoch.compute_seconds;
    all.communication_seconds += epoch.communication_seconds;
  }
  std::printf("\nobjective      %.6g (mean log-loss + l2 / 2 * |parameters|^2, training set)\n", objective);
  std::printf("test loss      %.6g\n", epochs.back().metrics.val_loss);
  std::printf("test accuracy  %.4f\n", epochs.back().metrics.val_accuracy);
  if (final_accuracy) std::printf("all workers    test accuracy %.4f\n", *final_accuracy);
  std::printf("samples/s      %.3g\n", all.samples_per_second());
  std::printf("batch time     %.3f s, of it computing %.3f s, communicating %.3f s (slowest rank)\n", all.train_seconds,
              all.compute_seconds, all.communication_seconds);
  if (!chosen.goal.metric.empty()) {
    std::printf("time to goal   ");
    if (const auto reached = tracker.time_to_goal()) {
      std::printf("%.3f s (%s %g)\n", *reached, chosen.goal.metric.c_str(), chosen.goal.value);
    } else {
      std::printf("not reached (%s %g)\n", chosen.goal.metric.c_str(), chosen.goal.value);
    }
  }
  std::fflush(stdout);
}

void write_report(muster::tracker& report, const muster::context& context, const problem& data, const options& chosen,
                  double objective, std::optional<double> final_accuracy) {
  const auto text_of = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return std::string(text);
  };
  const auto& settings = context.configuration();
  const bool own = settings.is_default(muster::setting::optimizer);
  examples::annotate_settings(report, context,
                              {{"program", "logistic_regression"},
                               {"optimizer", own ? optimizer_of(chosen) : settings.value(muster::setting::optimizer)},
                               {"schedule", chosen.schedule},
                               {"batch", std::to_string(chosen.batch)},
                               {"epochs", std::to_string(chosen.epochs)},
                               {"seed", std::to_string(chosen.seed)},
                               {"objective", text_of(objective)},
                               {"options", describe(chosen)},
                               {"test", data.test.data.name()},
                               {"train", data.train.data.name()}});
  if (final_accuracy) report.annotate("accuracy of all workers", text_of(*final_accuracy));
  report.write(chosen.json);
}

}  // namespace logistic
