#include "report.hpp"

#include <cstdio>

#include "../job.hpp"

namespace images {

void print_header(const options& chosen, nn::network<float>& net, std::string_view data, std::string_view ranks) {
  std::printf("%s: %zu parameters, %.1f million operations an image and step, %s\n%s, %s\n", chosen.model.c_str(),
              net.parameter_count(), net.operations() * 1e-6, std::string(ranks).c_str(), std::string(data).c_str(),
              describe(chosen).c_str());
  std::printf("\nepoch  train loss    val loss     top-1     top-5      rate   seconds    images/s\n");
  std::fflush(stdout);
}

void print_epoch(const muster::tracker& tracker, std::uint64_t epoch, double top5, double rate) {
  const auto& report = tracker.epochs().back();
  std::printf("%5llu  %10.4f  %10.4f  %8.4f  %8.4f  %8.3g  %8.2f  %10.4g\n", static_cast<unsigned long long>(epoch),
              report.metrics.train_loss, report.metrics.val_loss, report.metrics.val_accuracy, top5, rate,
              report.train_seconds, report.samples_per_second());
  std::fflush(stdout);
}

void print_results(const muster::tracker& tracker, const options& chosen, double accuracy, double top5) {
  if (tracker.epochs().empty()) {
    std::printf("nothing was left to train\n");
    return;
  }
  double seconds = 0, images = 0, communication = 0;
  for (const auto& epoch : tracker.epochs()) {
    seconds += epoch.train_seconds;
    images += static_cast<double>(epoch.samples);
    communication += epoch.communication_seconds;
  }
  std::printf("\ntop-1 accuracy  %.4f\ntop-5 accuracy  %.4f\nimages/s        %.4g\n", accuracy, top5, images / seconds);
  std::printf("batch time      %.2f s, of it communicating %.2f s (slowest rank)\n", seconds, communication);
  if (!chosen.goal.metric.empty()) {
    const auto reached = tracker.time_to_goal();
    if (reached) {
      std::printf("time to goal    %.2f s (%s %g)\n", *reached, chosen.goal.metric.c_str(), chosen.goal.value);
    } else {
      std::printf("time to goal    not reached (%s %g)\n", chosen.goal.metric.c_str(), chosen.goal.value);
    }
  }
  std::fflush(stdout);
}

void write_report(muster::tracker& tracker, const muster::context& context, const options& chosen,
                  std::string_view data, double top5) {
  if (chosen.json.empty()) return;
  examples::annotate_settings(tracker, context,
                              {{"program", chosen.program},
                               {"optimizer", chosen.optimizer},
                               {"schedule", chosen.schedule},
                               {"batch", std::to_string(chosen.batch)},
                               {"epochs", std::to_string(chosen.epochs)},
                               {"augment", chosen.augment ? "on" : "off"},
                               {"sync_batch_norm", chosen.share_statistics ? "on" : "off"},
                               {"seed", std::to_string(chosen.seed)}});
  tracker.annotate("data", std::string(data));
  tracker.annotate("model", chosen.model);
  tracker.annotate("options", describe(chosen));
  char text[32];
  std::snprintf(text, sizeof text, "%.6f", top5);
  tracker.annotate("top5_accuracy", text);
  tracker.write(chosen.json);
}

}  // namespace images
