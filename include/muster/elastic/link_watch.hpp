// Measures this rank's connections over the last steps and finds the slowest.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Samples the connections once per step and reports once every few steps. Used by the rank's thread.
class link_watch {
 public:
  /// The quality of a connection: its best over the steps, without the best fifth of the steps.
  struct measured_link {
    int peer = -1;
    link_quality quality;
  };
  /// A report over the last steps: the slowest of the connections with much traffic (`peer` is -1 if no connection has
  /// much), the best bandwidth of these connections in their worst fifth of the steps, and all connections with any
  /// traffic.
  struct link_report {
    measured_link slowest;
    double best_rate = 0;
    std::vector<measured_link> all;
  };

  /// Begins a new group. `steps` is the number of steps per report.
  void begin(int rank_count, std::size_t steps) {
    steps_per_fifth_ = std::max<std::size_t>(steps / pieces, 1);
    steps_sampled_ = 0;
    samples_ = 0;
    links_.assign(static_cast<std::size_t>(rank_count), {});
  }
  /// Samples connections of `over`, the group's transport, after a step. Returns a report over the last `steps` steps
  /// (see `begin`), each time a fifth of them has passed. The system's measurement of a single step is mostly noise
  /// where cores are shared: a connection is slow only if it was slow in all steps of four fifths.
  template <class Transport>
  std::optional<link_report> sample(Transport& over) {
    // Each sample is one system call, so one step of a large job samples only some connections.
    const std::size_t samples = std::min(links_.size(), max_samples);
    const std::size_t piece = steps_sampled_ / steps_per_fifth_ % pieces;
    for (std::size_t k = 0; k < samples; ++k, ++samples_) {
      const auto peer = samples_ % links_.size();
      auto& link = links_[peer];
      const link_quality quality = over.quality(static_cast<int>(peer));
      if (!link.known) link.sent.fill(quality.sent);
      link.known = true;
      link.rates[piece] = std::max(link.rates[piece], quality.bandwidth);
      link.last = quality;
    }
    if (++steps_sampled_ % steps_per_fifth_ != 0) return std::nullopt;
    const std::size_t oldest = (piece + 1) % pieces;
    auto report = steps_sampled_ >= pieces * steps_per_fifth_ ? std::optional(evaluate(oldest)) : std::nullopt;
    for (auto& link : links_) {
      link.rates[oldest] = 0;
      link.sent[oldest] = link.last.sent;
    }
    return report;
  }

 private:
  static constexpr std::size_t pieces = 5;
  static constexpr std::size_t max_samples = 64;
  /// Least number of bytes that a connection must send in the steps of a report to count in `slowest` and `best_rate`.
  /// The rate of a connection with less traffic shows how fast the rank
  /// sends, not the connection's bandwidth.
  static constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;
  struct watched {
    bool known = false;
    std::array<double, pieces> rates{};        // the best rate of each fifth
    std::array<std::uint64_t, pieces> sent{};  // number of bytes sent before each fifth
    link_quality last;
  };

  [[nodiscard]] link_report evaluate(std::size_t oldest) const {
    link_report report;
    std::uint64_t most_sent = 0;
    for (std::size_t peer = 0; peer < links_.size(); ++peer) {
      const auto& watched_link = links_[peer];
      auto rates = watched_link.rates;
      std::ranges::sort(rates, std::greater());
      const link_quality best{
          .sent = watched_link.last.sent - std::min(watched_link.last.sent, watched_link.sent[oldest]),
          .bandwidth = rates[1],
          .latency = watched_link.last.latency};
      most_sent = std::max(most_sent, best.sent);
      if (best.sent > 0 && best.bandwidth > 0) report.all.push_back({static_cast<int>(peer), best});
    }
    for (const auto& link : report.all) {
      const bool counts = link.quality.sent >= least_bytes && link.quality.sent >= most_sent / 4;
      if (!counts) continue;
      if (report.slowest.peer < 0 || link.quality.bandwidth < report.slowest.quality.bandwidth) report.slowest = link;
      report.best_rate =
          std::max(report.best_rate, std::ranges::min(links_[static_cast<std::size_t>(link.peer)].rates));
    }
    return report;
  }

  std::vector<watched> links_;
  std::size_t steps_per_fifth_ = 1;  // number of steps of a fifth
  std::size_t steps_sampled_ = 0;    // number of steps since `begin`
  std::size_t samples_ = 0;  // number of samples since `begin`; the next sample is of peer `samples_` modulo the size
};

}}}  // namespace muster::v0::detail
