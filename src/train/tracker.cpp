#include <muster/train/tracker.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include <nlohmann/json.hpp>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster::inline v0 {
namespace {

constexpr std::array<std::string_view, phase_count> phase_names = {"batch_load", "forward",        "loss",   "backward",
                                                                   "aggregate",  "optimizer_step", "metrics"};
const std::vector<std::string> goal_metrics{"accuracy", "val_loss", "train_loss", "train_accuracy"};

bool is_computation(phase which) {
  return which == phase::forward || which == phase::loss || which == phase::backward || which == phase::optimizer_step;
}

void check_metric(const std::string& metric) {
  if (std::find(goal_metrics.begin(), goal_metrics.end(), metric) != goal_metrics.end()) return;
  const auto meant = closest(metric, goal_metrics);
  throw configuration_error("no goal is named '" + metric +
                            "' (known: accuracy, val_loss, train_loss, train_accuracy)" +
                            (meant ? "; did you mean '" + *meant + "'?" : "; write such as accuracy=0.85"));
}

}  // namespace

std::string_view to_string(phase which) noexcept { return phase_names[static_cast<std::size_t>(which)]; }

goal parse_goal(std::string_view text) {
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) {
    throw configuration_error("goal '" + std::string(text) +
                              "' cannot be used (it has no '='); write a metric and its value, such as accuracy=0.85");
  }
  goal parsed{std::string(text.substr(0, equals)), 0.0};
  check_metric(parsed.metric);
  const std::string_view word = text.substr(equals + 1);
  const auto value = parse_number<double>(word);
  if (!value) {
    throw configuration_error("goal '" + std::string(text) + "' cannot be used ('" + std::string(word) +
                              "' is not a number); write a metric and its value, such as accuracy=0.85");
  }
  parsed.value = *value;
  if (parsed.metric.ends_with("accuracy") && !(parsed.value > 0.0 && parsed.value <= 1.0)) {
    throw configuration_error("goal '" + std::string(text) +
                              "' cannot be used (an accuracy is a share, above 0 and at most 1); write such as " +
                              parsed.metric + "=0.85");
  }
  return parsed;
}

double epoch_report::samples_per_second() const noexcept {
  return train_seconds > 0 ? static_cast<double>(samples) / train_seconds : 0.0;
}

tracker::tracker(const group& world, tracker_options options)
    : rank_(world.rank()), world_size_(world.size()), transport_(world.abilities().name), options_(std::move(options)) {
  if (!options_.goal.metric.empty()) check_metric(options_.goal.metric);
}

void tracker::record(const event& event) noexcept {
  if (event_sink* const other = installed_.former()) other->record(event);
  const double span = seconds(event.end - event.begin).count();
  const auto add_to = [&](muster::phase which) { here_.phases[static_cast<std::size_t>(which)] += span; };
  if (event.what == activity::phase) {
    const auto found = std::ranges::find(phase_names, event.name);
    if (found != phase_names.end()) {
      const auto which = static_cast<muster::phase>(found - phase_names.begin());
      add_to(which);
      if (in_batches_ && is_computation(which))
        here_.compute_seconds += std::max(0.0, span - (waited() - waited_before_phase_));
    }
  }
  if (!in_batches_) return;
  switch (event.what) {
    case activity::communication:
      here_.communication_seconds += span;
      here_.bytes += static_cast<double>(event.bytes);
      break;
    case activity::rebuild:
      here_.communication_seconds += span;
      break;
    case activity::data_wait:
      here_.data_wait_seconds += span;
      add_to(phase::batch_load);
      break;
    case activity::aggregate:
      add_to(phase::aggregate);
      break;
    case activity::update:
      add_to(phase::optimizer_step);
      here_.compute_seconds += span;
      break;
    case activity::transfer:  // the part of it that was waited for is told by itself
      break;
    case activity::bucket:  // likewise
      here_.bytes += static_cast<double>(event.bytes);
      break;
    case activity::push_age:
      here_.push_ages.add(event.bytes);
      break;
    case activity::phase:  // above
    case activity::step:   // made of others
      break;
    case activity::cache_hit:
    case activity::cache_miss:
      break;  // no time of their own
  }
}

const epoch_report& tracker::end_epoch(group& world, const epoch_metrics& metrics) {
  const auto seconds_in = [this](muster::phase which) { return here_.phases[static_cast<std::size_t>(which)]; };
  std::array<double, 4 + phase_count> slowest = {here_.train_seconds, here_.communication_seconds,
                                                 here_.data_wait_seconds,
                                                 seconds_in(phase::forward) + seconds_in(phase::loss) +
                                                     seconds_in(phase::backward) + seconds_in(phase::optimizer_step)};
  std::copy(here_.phases.begin(), here_.phases.end(), slowest.begin() + 4);
  constexpr std::size_t own = 6;
  std::array<double, own + phase_count> total = {
      here_.samples,       here_.bytes,  // exact below 2^53
      here_.train_seconds, here_.compute_seconds, here_.communication_seconds, here_.data_wait_seconds};
  std::copy(here_.phases.begin(), here_.phases.end(), total.begin() + own);
  std::array<double, histogram::buckets + 1> ages{};
  std::copy(here_.push_ages.counts.begin(), here_.push_ages.counts.end(), ages.begin());
  ages.back() = here_.push_ages.total;
  allreduce(world, std::span(slowest), max);
  allreduce(world, std::span(total), sum);
  allreduce(world, std::span(ages), sum);
  here_ = {};  // now: where that fails, an elastic session ends the epoch once more
  world_size_ = world.size();
  transport_ = world.abilities().name;
  histogram pushed;
  std::copy_n(ages.begin(), histogram::buckets, pushed.counts.begin());
  pushed.total = ages.back();
  push_ages_ += pushed;

  epochs_.push_back(
      {.metrics = metrics,
       .samples = static_cast<std::uint64_t>(total[0]),
       .train_seconds = slowest[0],
       .compute_seconds = slowest[3],
       .communication_seconds = slowest[1],
       .data_wait_seconds = slowest[2],
       .communication_bytes = static_cast<std::uint64_t>(total[1]),
       .mean = {total[2] / world.size(), total[3] / world.size(), total[4] / world.size(), total[5] / world.size()}});
  for (std::size_t i = 0; i < phase_count; ++i) {
    phases_[i].slowest += slowest[4 + i];
    phases_[i].mean += total[own + i] / world.size();
  }
  if (!time_to_goal_ && reaches_goal(metrics)) {
    time_to_goal_ = 0.0;
    for (const auto& epoch : epochs_) *time_to_goal_ += epoch.train_seconds;
  }
  return epochs_.back();
}

namespace {

// What the epochs that ended left behind, as bytes: this, and then the reports.
struct tracked {
  std::uint64_t epochs = 0;
  double time_to_goal = -1;  // below 0: not reached
  std::array<std::array<double, 2>, phase_count> phases{};
  histogram push_ages;
};
static_assert(std::is_trivially_copyable_v<tracked> && std::is_trivially_copyable_v<epoch_report>);

}  // namespace

void tracker::describe(state_parts& parts) {
  parts.add(
      "tracker", state_kind::replicated,
      [this] {
        tracked all{.epochs = epochs_.size(),
                    .time_to_goal = time_to_goal_.value_or(-1.0),
                    .phases = {},
                    .push_ages = push_ages_};
        for (std::size_t k = 0; k < phase_count; ++k) all.phases[k] = {phases_[k].slowest, phases_[k].mean};
        std::vector<std::byte> bytes(sizeof all + epochs_.size() * sizeof(epoch_report));
        std::memcpy(bytes.data(), &all, sizeof all);
        if (!epochs_.empty()) std::memcpy(bytes.data() + sizeof all, epochs_.data(), bytes.size() - sizeof all);
        return bytes;
      },
      [this](std::span<const std::byte> bytes) {
        tracked all;
        if (bytes.size() >= sizeof all) std::memcpy(&all, bytes.data(), sizeof all);
        if (bytes.size() < sizeof all || bytes.size() - sizeof all != all.epochs * sizeof(epoch_report)) {
          throw configuration_error(
              "this state of a tracker cannot be used (it is of another version); use the muster it was written with");
        }
        epochs_.resize(static_cast<std::size_t>(all.epochs));
        if (!epochs_.empty()) std::memcpy(epochs_.data(), bytes.data() + sizeof all, bytes.size() - sizeof all);
        for (std::size_t k = 0; k < phase_count; ++k) phases_[k] = {all.phases[k][0], all.phases[k][1]};
        time_to_goal_ = all.time_to_goal < 0 ? std::nullopt : std::optional(all.time_to_goal);
        push_ages_ = all.push_ages;
        here_ = {};
      });
}

bool tracker::reaches_goal(const epoch_metrics& metrics) const noexcept {
  const goal& wanted = options_.goal;
  if (wanted.metric.empty()) return false;
  if (wanted.metric == "accuracy") return metrics.val_accuracy >= wanted.value;
  if (wanted.metric == "train_accuracy") return metrics.train_accuracy >= wanted.value;
  return (wanted.metric == "val_loss" ? metrics.val_loss : metrics.train_loss) <= wanted.value;
}

namespace {

nlohmann::ordered_json figures_of(const epoch_report& of) {
  return {{"samples", of.samples},
          {"train_seconds", of.train_seconds},
          {"samples_per_second", of.samples_per_second()},
          {"compute_seconds", of.compute_seconds},
          {"communication_seconds", of.communication_seconds},
          {"communication_bytes", of.communication_bytes},
          {"data_wait_seconds", of.data_wait_seconds},
          {"mean_train_seconds", of.mean.train},
          {"mean_compute_seconds", of.mean.compute},
          {"mean_communication_seconds", of.mean.communication},
          {"mean_data_wait_seconds", of.mean.data_wait},
          {"mean_other_seconds", of.mean.other()}};
}

}  // namespace

std::string tracker::json() const {
  using nlohmann::ordered_json;  // NaN becomes null, which is what JSON has for it
  epoch_report all;
  ordered_json epochs = ordered_json::array();
  for (const auto& epoch : epochs_) {
    epochs.push_back({{"epoch", epochs.size() + 1},
                      {"train_loss", epoch.metrics.train_loss},
                      {"val_loss", epoch.metrics.val_loss},
                      {"val_accuracy", epoch.metrics.val_accuracy},
                      {"train_accuracy", epoch.metrics.train_accuracy}});
    epochs.back().update(figures_of(epoch));
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
  ordered_json phases = ordered_json::object();
  for (std::size_t i = 0; i < phase_count; ++i) {
    phases[std::string(phase_names[i])] = {{"max_seconds", phases_[i].slowest}, {"mean_seconds", phases_[i].mean}};
  }
  ordered_json report = {{"format", 1}, {"world_size", world_size_}, {"transport", transport_}};
  report["goal"] = nullptr;
  if (const goal& wanted = options_.goal; !wanted.metric.empty()) {
    report["goal"] = {{"metric", wanted.metric}, {"value", wanted.value}};
  }
  report["time_to_goal_seconds"] = time_to_goal_ ? ordered_json(*time_to_goal_) : ordered_json();
  report.update(figures_of(all));
  report["phases"] = std::move(phases);
  report["push_ages"] = nullptr;
  if (const double pushes = push_ages_.count(); pushes > 0) {
    report["push_ages"] = {{"pushes", static_cast<std::uint64_t>(pushes)},
                           {"mean", push_ages_.mean()},
                           {"half_at_most", push_ages_.at_most(0.5)},
                           {"most_at_most", push_ages_.at_most(0.95)},
                           {"all_at_most", push_ages_.at_most(1.0)}};
  }
  report["epochs"] = std::move(epochs);
  report["annotations"] = annotations_;
  // Annotations may hold any bytes, such as those of a file name; what is not UTF-8 is replaced.
  return report.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void tracker::write(const std::string& path) const {
  if (rank_ == 0) write_atomically(path, json());
}

}  // namespace muster::inline v0
