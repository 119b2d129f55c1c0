// The outputs of a tracker: its report, and the figures so far.
#pragma once

#include <muster/train/tracker.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <muster/core/atomic_file.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline nlohmann::ordered_json figures_of(const epoch_report& epoch) {
  return {{"samples", epoch.samples},
          {"train_seconds", epoch.train_seconds},
          {"samples_per_second", epoch.samples_per_second()},
          {"compute_seconds", epoch.compute_seconds},
          {"communication_seconds", epoch.communication_seconds},
          {"communication_bytes", epoch.communication_bytes},
          {"data_wait_seconds", epoch.data_wait_seconds},
          {"mean_train_seconds", epoch.mean.train},
          {"mean_compute_seconds", epoch.mean.compute},
          {"mean_communication_seconds", epoch.mean.communication},
          {"mean_data_wait_seconds", epoch.mean.data_wait},
          {"mean_other_seconds", epoch.mean.other()}};
}

inline epoch_report total_of(const std::vector<epoch_report>& epochs) {
  epoch_report all;
  for (const auto& epoch : epochs) {
    all.samples += epoch.samples;
    all.train_seconds += epoch.train_seconds;
    all.compute_seconds += epoch.compute_seconds;
    all.communication_seconds += epoch.communication_seconds;
    all.communication_bytes += epoch.communication_bytes;
    all.data_wait_seconds += epoch.data_wait_seconds;
    all.mean.train += epoch.mean.train;
    all.mean.compute += epoch.mean.compute;
    all.mean.communication += epoch.mean.communication;
    all.mean.data_wait += epoch.mean.data_wait;
  }
  return all;
}

}  // namespace detail

MUSTER_INLINE void tracker::annotate(const std::string& key, const std::string& text) { annotations_[key] = text; }

// Replaces the file atomically for readers, without waiting for the disk, since the next epoch writes the file again. A
// failure does not end the training.
MUSTER_INLINE void tracker::export_metrics() const {
  auto figures = detail::figures_of(detail::total_of(epochs_));
  const auto& last = epochs_.back().metrics;
  figures.update({{"epoch", epochs_.size()},
                  {"world_size", world_size_},
                  {"train_loss", last.train_loss},
                  {"val_loss", last.val_loss},
                  {"val_accuracy", last.val_accuracy},
                  {"train_accuracy", last.train_accuracy}});
  const std::string temporary = options_.metrics + ".tmp";
  std::ofstream file(temporary);
  for (const auto& [name, value] : figures.items()) {
    const bool is_known = std::isfinite(value.get<double>());
    file << "# TYPE muster_" << name << " gauge\nmuster_" << name << ' ' << (is_known ? value.dump() : "NaN") << '\n';
  }
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, options_.metrics, error);
  if (!file || error) {
    log(log_level::warning, "this epoch's metrics are missing in '" + options_.metrics +
                                "' (the file cannot be written); the training continues");
  }
}

// A failure does not end the training.
MUSTER_INLINE void tracker::export_scalars() {
  const std::uint64_t number = epochs_.size();
  const auto& last = epochs_.back();
  try {
    if (!scalars_) scalars_.emplace(options_.tensorboard, number);
    scalars_->add(number, std::array<tensorboard_scalar, 5>{{{"train_loss", last.metrics.train_loss},
                                                             {"val_loss", last.metrics.val_loss},
                                                             {"val_accuracy", last.metrics.val_accuracy},
                                                             {"train_accuracy", last.metrics.train_accuracy},
                                                             {"samples_per_second", last.samples_per_second()}}});
  } catch (const configuration_error& failed) {
    scalars_.reset();  // the file may end within a frame, behind which readers find nothing
    log(log_level::warning, std::string("this epoch has no event: ") + failed.what() + "; the training continues");
  }
}

MUSTER_INLINE std::string tracker::json() const {
  using nlohmann::ordered_json;  // NaN becomes null, its representation in JSON
  ordered_json epochs = ordered_json::array();
  for (const auto& epoch : epochs_) {
    epochs.push_back({{"epoch", epochs.size() + 1},
                      {"train_loss", epoch.metrics.train_loss},
                      {"val_loss", epoch.metrics.val_loss},
                      {"val_accuracy", epoch.metrics.val_accuracy},
                      {"train_accuracy", epoch.metrics.train_accuracy}});
    epochs.back().update(detail::figures_of(epoch));
  }
  ordered_json phases = ordered_json::object();
  for (std::size_t i = 0; i < phase_count; ++i) {
    phases[std::string(to_string(static_cast<muster::phase>(i)))] = {{"max_seconds", totals_.slowest[i]},
                                                                     {"mean_seconds", totals_.mean[i]}};
  }
  ordered_json report = {{"format", 1}, {"world_size", world_size_}, {"transport", transport_}};
  report["goal"] = nullptr;
  if (const goal& target = options_.goal; !target.metric.empty()) {
    report["goal"] = {{"metric", target.metric}, {"value", target.value}};
  }
  report["time_to_goal_seconds"] = time_to_goal() ? ordered_json(*time_to_goal()) : ordered_json();
  report.update(detail::figures_of(detail::total_of(epochs_)));
  report["phases"] = std::move(phases);
  report["push_ages"] = nullptr;
  if (const double pushes = totals_.push_ages.count(); pushes > 0) {
    report["push_ages"] = {{"pushes", static_cast<std::uint64_t>(pushes)},
                           {"mean", totals_.push_ages.mean()},
                           {"half_at_most", totals_.push_ages.at_most(0.5)},
                           {"most_at_most", totals_.push_ages.at_most(0.95)},
                           {"all_at_most", totals_.push_ages.at_most(1.0)}};
  }
  report["ranks"] = ordered_json::array();
  for (const auto& entry : ranks_) {
    ordered_json links = ordered_json::array();
    for (const auto& link : entry.links) {
      if (link.to < 0) break;
      links.push_back({{"to", static_cast<int>(link.to)},
                       {"bytes_per_second", link.bandwidth},
                       {"round_trip_seconds", link.latency}});
    }
    const double rate = entry.own_seconds > 0 ? entry.samples / entry.own_seconds : 0;
    report["ranks"].push_back(
        {{"rank", report["ranks"].size()}, {"own_samples_per_second", rate}, {"links", std::move(links)}});
  }
  report["epochs"] = std::move(epochs);
  report["annotations"] = annotations_;
  // Annotations may contain any bytes, for example in a file name. Bytes that are not UTF-8 are replaced.
  return report.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

MUSTER_INLINE void tracker::write(const std::string& path) const {
  if (rank_ == 0) write_atomically(path, json());
}

}}  // namespace muster::v0
