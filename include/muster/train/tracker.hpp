// A tracker that measures the time and accuracy of a training, and reports both as JSON.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/events.hpp>
#include <muster/core/histogram.hpp>
#include <muster/elastic/state.hpp>
#include <muster/train/tensorboard_file.hpp>

namespace muster { inline namespace v0 {

/// The phases of a training step.
enum class phase : std::uint8_t { batch_load, forward, loss, backward, aggregate, optimizer_step, metrics };
inline constexpr std::size_t phase_count = 7;

/// Returns the name of a phase in reports, such as "batch_load".
[[nodiscard]] std::string_view to_string(phase kind) noexcept;

/// The goal of a training: a metric and its value. "accuracy" is the val_accuracy of an epoch. "accuracy" and
/// "train_accuracy" must be at least the value, "val_loss" and "train_loss" at most.
struct goal {
  std::string metric;  ///< empty: no goal
  double value = 0.0;
};

/// Reads "accuracy=0.85". Throws configuration_error that names the mistake and the known metrics.
[[nodiscard]] goal parse_goal(std::string_view text);

/// Options of a tracker.
struct tracker_options {
  muster::goal goal{};
  /// Path to which rank 0 writes the figures so far at the end of each epoch, in Prometheus' text format, replacing the
  /// earlier file. Empty or "none": no file. Programs take the path from `setting::metrics` (--metrics).
  std::string metrics{};
  /// Folder in which rank 0 writes an event file with the scalars of each epoch, for TensorBoard. Empty or "none": no
  /// file. Programs take the folder from `setting::tensorboard` (--tensorboard).
  std::string tensorboard{};
};

/// Metrics of the model after an epoch. NaN: not measured.
struct epoch_metrics {
  double train_loss = std::numeric_limits<double>::quiet_NaN();
  double val_loss = std::numeric_limits<double>::quiet_NaN();
  double val_accuracy = std::numeric_limits<double>::quiet_NaN();    ///< in [0, 1]
  double train_accuracy = std::numeric_limits<double>::quiet_NaN();  ///< in [0, 1]
};

/// The parts of the batch clock's time in seconds, without overlap: of one rank, or the mean over the ranks.
struct time_shares {
  double train = 0;          ///< total on the batch clock
  double compute = 0;        ///< in the phases of computation, without communication and waiting for data
  double communication = 0;  ///< time in collectives, and in changes of the group
  double data_wait = 0;      ///< time waiting for the loader
  /// Returns the rest of the time.
  [[nodiscard]] double other() const noexcept { return train - compute - communication - data_wait; }
};

/// The report of an epoch, over all ranks. Each figure in seconds is the maximum over the ranks.
struct epoch_report {
  epoch_metrics metrics;
  std::uint64_t samples = 0;              ///< sum over the ranks
  double train_seconds = 0;               ///< time on the batch clock, without validation
  double compute_seconds = 0;             ///< time in the phases forward, loss, backward and optimizer_step, including
                                          ///< collectives and waiting within the phases
  double communication_seconds = 0;       ///< time in collectives and changes of the group while the batch clock ran
  double data_wait_seconds = 0;           ///< time waiting for the loader while the batch clock ran
  std::uint64_t communication_bytes = 0;  ///< payloads in these collectives, over all ranks
  time_shares mean;                       ///< mean over the ranks of each rank's times

  /// samples / train_seconds; 0 when no time passed.
  [[nodiscard]] double samples_per_second() const noexcept;
};

/// A rank's part of the last epoch, and its busiest connections with the measured quality (`link_quality`).
struct rank_report {
  static constexpr std::size_t most_links = 8;
  struct link {
    double to = -1;        ///< rank of the peer; below 0: none
    double bandwidth = 0;  ///< bytes a second
    double latency = 0;    ///< duration of the shortest round trip in seconds
  };
  double samples = 0;                  ///< samples of this rank
  double own_seconds = 0;              ///< time on the batch clock without the time in collectives
  std::array<link, most_links> links;  ///< the busiest first; none where the system gives no figures, as over shm
};

/// A tracker that times the phases of training on every rank, records the library's events (core/events.hpp), and
/// reports phases and events as JSON (docs/tracker.md).
///
///     muster::tracker tracker(world, {.goal = {"accuracy", 0.85}});
///     for (;;) {                                          // an epoch
///       {
///         auto batches = tracker.batches();               // the batch clock runs
///         for (...) {
///           { auto phase = tracker.phase(muster::phase::forward); ... }
///           tracker.add_samples(n);
///         }
///       }
///       { auto phase = tracker.phase(muster::phase::metrics); ... }
///       tracker.end_epoch(world, {.train_loss = ..., .val_loss = ..., .val_accuracy = ...});
///     }
///     tracker.write("out.json");
///
/// Every rank has its own tracker, created, used and destroyed by the thread that is the rank. The tracker is the event
/// sink of that thread while it lives. It costs two readings of the clock per phase and allocates nothing between
/// epochs.
class tracker final : public event_sink {
 public:
  /// Reads only size, rank and transport of `world`. Throws configuration_error for a goal with an unknown metric.
  explicit tracker(const group& world, tracker_options options = {});

  /// A scope in which the batch clock runs: everything that a step needs, and no validation.
  class [[nodiscard]] batch_clock {
   public:
    /// Starts the clock. `owner` must outlive the object.
    explicit batch_clock(tracker& owner) noexcept : owner_(&owner), begin_(clock::now()) { owner_->in_batches_ = true; }
    batch_clock(const batch_clock&) = delete;
    batch_clock& operator=(const batch_clock&) = delete;
    ~batch_clock() {
      owner_->local_.spent.train += seconds_since(begin_);
      owner_->in_batches_ = false;
    }

   private:
    tracker* owner_;
    clock::time_point begin_;
  };
  /// Starts the batch clock, which stops when the result is destroyed. Only one batch clock may exist at a time.
  [[nodiscard]] batch_clock batches() noexcept { return batch_clock(*this); }
  /// Counts the lifetime of the result as the phase `kind`, for phases of the program. The loader (batch_load), the
  /// reduction of gradients (aggregate) and the optimizer send events themselves. Phases do not nest. A kernel that
  /// does several phases counts as its last phase.
  [[nodiscard]] scoped_event phase(muster::phase kind) noexcept {
    waited_before_phase_ = waited();
    return {activity::phase, to_string(kind), 0};
  }
  /// Counts samples in this rank's steps.
  void add_samples(std::uint64_t samples) noexcept { local_.samples += static_cast<double>(samples); }

  /// Ends an epoch, and returns the combined measurements of the ranks. Collective. `metrics` are those over all ranks,
  /// and equal at each rank. In a program with a session, make this call the last call of an evaluation.
  const epoch_report& end_epoch(group& world, const epoch_metrics& metrics);

  /// Returns the finished epochs, in order; the same at every rank.
  [[nodiscard]] const std::vector<epoch_report>& epochs() const noexcept { return epochs_; }
  /// Returns the reports of the ranks for the last finished epoch, by rank; the same at every rank.
  [[nodiscard]] const std::vector<rank_report>& ranks() const noexcept { return ranks_; }
  /// Returns the time on the batch clock at the end of the first epoch that reached the goal, or nothing before that
  /// epoch or without a goal. The same at every rank.
  [[nodiscard]] std::optional<double> time_to_goal() const noexcept {
    return totals_.time_to_goal < 0 ? std::nullopt : std::optional(totals_.time_to_goal);
  }

  /// Adds a property of the run to the report, such as a seed or a data set. A later text for a key replaces the
  /// earlier text.
  void annotate(const std::string& key, const std::string& text);
  /// Returns the report. docs/tracker.md describes its format, to which later versions only add fields.
  [[nodiscard]] std::string json() const;
  /// Writes the report on rank 0, completely or not at all, and does nothing on other ranks. Throws configuration_error
  /// when the file cannot be written. `require_writable` checks that before the training.
  void write(const std::string& path) const;

  /// Passes the event on to the thread's former sink, such as a timeline.
  void record(const event& event) noexcept override;

  /// Describes the state to a session: the finished epochs, replicated.
  void describe(state_parts& parts);

 private:
  // Measurements at this rank since the last epoch ended. All members are doubles, so that a collective reduces the
  // object directly.
  struct measurements {
    time_shares spent;
    double samples = 0;
    double bytes = 0;  // exact below 2^53
    std::array<double, phase_count> phases{};
    histogram push_ages;
  };
  // Totals over the finished epochs, besides the epochs' reports.
  struct totals {
    double time_to_goal = -1;  // below 0: not reached
    std::array<double, phase_count> slowest{};
    std::array<double, phase_count> mean{};
    histogram push_ages;
  };

  void export_metrics() const;
  void export_scalars();
  [[nodiscard]] bool reaches_goal(const epoch_metrics& metrics) const;
  [[nodiscard]] double waited() const noexcept { return local_.spent.communication + local_.spent.data_wait; }

  int rank_;
  int world_size_;
  std::string transport_;
  tracker_options options_;
  measurements local_;
  bool in_batches_ = false;
  double waited_before_phase_ = 0;
  totals totals_;
  std::vector<epoch_report> epochs_;
  std::vector<rank_report> ranks_;
  std::map<std::string, std::string> annotations_;
  std::optional<tensorboard_file> scalars_;  // created after the first epoch
  scoped_event_sink installed_{*this};
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
