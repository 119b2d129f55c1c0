#pragma once

#include <muster/train/tracker.hpp>

#include <algorithm>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline constexpr std::array<std::string_view, phase_count> phase_names = {
    "batch_load", "forward", "loss", "backward", "aggregate", "optimizer_step", "metrics"};
struct goal_metric {
  std::string_view name;
  double epoch_metrics::*value;
  bool at_least;  // direction of the goal; false: at most
};
inline constexpr std::array<goal_metric, 4> goal_metrics = {{{"accuracy", &epoch_metrics::val_accuracy, true},
                                                             {"val_loss", &epoch_metrics::val_loss, false},
                                                             {"train_loss", &epoch_metrics::train_loss, false},
                                                             {"train_accuracy", &epoch_metrics::train_accuracy, true}}};

inline bool is_computation(phase kind) {
  return kind == phase::forward || kind == phase::loss || kind == phase::backward || kind == phase::optimizer_step;
}

inline const goal_metric& metric_named(const std::string& name) {
  const auto found = std::ranges::find(goal_metrics, name, &goal_metric::name);
  if (found != goal_metrics.end()) return *found;
  std::vector<std::string> names;
  for (const auto& metric : goal_metrics) names.emplace_back(metric.name);
  const auto suggestion = closest(name, names);
  throw configuration_error("no goal is named '" + name + "' (known: accuracy, val_loss, train_loss, train_accuracy)" +
                            (suggestion ? "; did you mean '" + *suggestion + "'?" : "; write such as accuracy=0.85"));
}

// Returns this rank's report of an epoch, with the busiest connections. Measures the connections by a system call for
// each rank. `own_seconds` is the time on the batch clock without the time in collectives.
inline rank_report describe_rank(group& world, double samples, double own_seconds) {
  rank_report report{.samples = samples, .own_seconds = own_seconds, .links = {}};
  std::vector<std::pair<link_quality, int>> all;
  for (int peer = 0; peer < world.size(); ++peer) {
    const auto link = world.transport().quality(peer);
    if (link.sent > 0 && link.bandwidth > 0) all.emplace_back(link, peer);
  }
  std::ranges::sort(all, std::greater(), [](const auto& entry) { return entry.first.sent; });
  for (std::size_t i = 0; i < std::min(all.size(), report.links.size()); ++i)
    report.links[i] = {static_cast<double>(all[i].second), all[i].first.bandwidth, all[i].first.latency};
  return report;
}

}  // namespace detail

MUSTER_INLINE std::string_view to_string(phase kind) noexcept {
  return detail::phase_names[static_cast<std::size_t>(kind)];
}

MUSTER_INLINE goal parse_goal(std::string_view text) {
  const auto refuse = [&](const std::string& reason) {
    throw configuration_error("goal '" + std::string(text) + "' cannot be used (" + reason +
                              "); write a metric and its value, such as accuracy=0.85");
  };
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) refuse("it has no '='");
  const std::string metric(text.substr(0, equals)), word(text.substr(equals + 1));
  const bool is_share = detail::metric_named(metric).at_least;
  const auto value = parse_number<double>(word);
  if (!value) refuse("'" + word + "' is not a number");
  if (is_share && !(*value > 0.0 && *value <= 1.0)) refuse("an accuracy is a share, above 0 and at most 1");
  return {metric, *value};
}

MUSTER_INLINE double epoch_report::samples_per_second() const noexcept {
  return train_seconds > 0 ? static_cast<double>(samples) / train_seconds : 0.0;
}

MUSTER_INLINE tracker::tracker(const group& world, tracker_options options)
    : rank_(world.rank()), world_size_(world.size()), transport_(world.abilities().name), options_(std::move(options)) {
  if (!options_.goal.metric.empty()) (void)detail::metric_named(options_.goal.metric);
}

// Adds the duration of the event to the time of its phase or activity, and passes the event to the earlier sink.
MUSTER_INLINE void tracker::record(const event& event) noexcept {
  if (event_sink* const former = installed_.former()) former->record(event);
  const double span = seconds(event.end - event.begin).count();
  const auto add_to = [&](muster::phase kind) { local_.phases[static_cast<std::size_t>(kind)] += span; };
  if (event.kind == activity::phase) {
    const auto found = std::ranges::find(detail::phase_names, event.name);
    if (found != detail::phase_names.end()) {
      const auto kind = static_cast<muster::phase>(found - detail::phase_names.begin());
      add_to(kind);
      if (in_batches_ && detail::is_computation(kind))
        local_.spent.compute += std::max(0.0, span - (waited() - waited_before_phase_));
    }
  }
  if (!in_batches_) return;
  switch (event.kind) {
    case activity::communication:
      local_.spent.communication += span;
      local_.bytes += static_cast<double>(event.bytes);
      break;
    case activity::rebuild:
      local_.spent.communication += span;
      break;
    case activity::data_wait:
      local_.spent.data_wait += span;
      add_to(phase::batch_load);
      break;
    case activity::aggregate:
      add_to(phase::aggregate);
      break;
    case activity::update:
      add_to(phase::optimizer_step);
      local_.spent.compute += span;
      break;
    case activity::bucket:  // the waiting for a bucket has its own event
      local_.bytes += static_cast<double>(event.bytes);
      break;
    case activity::push_age:
      local_.push_ages.add(event.bytes);
      break;
    case activity::phase:     // above
    case activity::transfer:  // counted as a bucket
    case activity::step:      // consists of other events
    case activity::cache_hit:
    case activity::cache_miss:
      break;
  }
}

MUSTER_INLINE const epoch_report& tracker::end_epoch(group& world, const epoch_metrics& metrics) {
  measurements total =
      std::exchange(local_, {});  // exchanged first: if the rest fails, an elastic session calls `end_epoch` again
  const auto own_report = detail::describe_rank(world, total.samples, total.spent.train - total.spent.communication);
  measurements slowest = total;
  slowest.spent.compute = 0;  // computed from whole phases, including their communication
  for (std::size_t i = 0; i < phase_count; ++i)
    slowest.spent.compute += detail::is_computation(static_cast<muster::phase>(i)) ? slowest.phases[i] : 0.0;
  const auto numbers = [](measurements& values) {
    static_assert(sizeof values % sizeof(double) == 0 && std::is_trivially_copyable_v<measurements>);
    return std::span(reinterpret_cast<double*>(&values), sizeof values / sizeof(double));
  };
  allreduce(world, numbers(slowest), max);
  allreduce(world, numbers(total), sum);
  std::vector<rank_report> all(static_cast<std::size_t>(world.size()));
  allgather(world, std::span(&own_report, 1), std::span(all));
  ranks_ = std::move(all);
  world_size_ = world.size();
  transport_ = world.abilities().name;

  const double ranks = world.size();
  epochs_.push_back({.metrics = metrics,
                     .samples = static_cast<std::uint64_t>(total.samples),
                     .train_seconds = slowest.spent.train,
                     .compute_seconds = slowest.spent.compute,
                     .communication_seconds = slowest.spent.communication,
                     .data_wait_seconds = slowest.spent.data_wait,
                     .communication_bytes = static_cast<std::uint64_t>(total.bytes),
                     .mean = {total.spent.train / ranks, total.spent.compute / ranks, total.spent.communication / ranks,
                              total.spent.data_wait / ranks}});
  for (std::size_t i = 0; i < phase_count; ++i) {
    totals_.slowest[i] += slowest.phases[i];
    totals_.mean[i] += total.phases[i] / ranks;
  }
  totals_.push_ages += total.push_ages;
  if (!time_to_goal() && reaches_goal(metrics)) {
    totals_.time_to_goal = 0.0;
    for (const auto& epoch : epochs_) totals_.time_to_goal += epoch.train_seconds;
  }
  if (world.rank() == 0 && !options_.metrics.empty() && options_.metrics != "none") export_metrics();
  if (world.rank() == 0 && !options_.tensorboard.empty() && options_.tensorboard != "none") export_scalars();
  return epochs_.back();
}

MUSTER_INLINE void tracker::describe(state_parts& parts) {
  parts.add(
      "tracker", state_kind::replicated,
      [this] {
        detail::wire_writer writer;
        writer.add(totals_);
        for (const auto& epoch : epochs_) writer.add(epoch);
        return writer.bytes();
      },
      [this](std::span<const std::byte> bytes) {
        detail::wire_reader reader(bytes);
        const auto read = reader.number<totals>();
        std::vector<epoch_report> epochs;
        while (reader.good() && !reader.rest().empty()) epochs.push_back(reader.number<epoch_report>());
        if (!reader.good()) {
          throw configuration_error(
              "this state of a tracker cannot be used (another version wrote it); use the version of muster that wrote "
              "it");
        }
        totals_ = read;
        epochs_ = std::move(epochs);
        local_ = {};
      });
}

MUSTER_INLINE bool tracker::reaches_goal(const epoch_metrics& metrics) const {
  const goal& target = options_.goal;
  if (target.metric.empty()) return false;
  const detail::goal_metric& metric = detail::metric_named(target.metric);
  const double value = metrics.*metric.value;
  return metric.at_least ? value >= target.value : value <= target.value;
}

}}  // namespace muster::v0
