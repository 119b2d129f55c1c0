// A whole training: loader, arena, optimizer, checkpoints and reports put together.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <muster/data/loader.hpp>
#ifdef MUSTER_HAS_TCP  // which elastic sessions are a part of
#include <muster/elastic/elastic.hpp>
#endif
#include <muster/elastic/session.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/optimizers/schedule.hpp>
#include <muster/train/sync/gradient_sync.hpp>
#include <muster/train/tracker.hpp>

namespace muster::inline v0 {

class training;

/// One step of a training, as its function sees it; in `each_epoch`, an evaluation. Valid while that runs.
class training_step : public step {
 public:
  /// This rank's part of the global batch, see `loader::next`.
  [[nodiscard]] minibatch next(loader& from) const { return from.next(shard()); }

  /// Calls `f(batch, pass)`, which computes the gradients of the batch from `pass.parameter(t)` into `pass.gradient(t)`
  /// (see `backward_pass`), and waits until they are the mean over the global batch, at every rank. The samples of the
  /// batch are counted here. Gradients leave when `f` says that they are `ready`, or else when it returns.
  template <class F>
  void backward(const minibatch& batch, F&& f) {
    backward(std::span(&batch, 1), std::forward<F>(f));
  }
  /// The same of micro-batches, as `batch.split(4)` makes them: their gradients are added up (`pass.adds(t)`), and
  /// leave in the last one.
  template <class F>
  void backward(std::span<const minibatch> batches, F&& f) {
    auto pass = sync().begin(group(), static_cast<int>(batches.size()));
    count(batches, pass);
    for (const minibatch& batch : batches) {
      f(batch, pass);
      pass.end_pass();
    }
    pass.wait();
    count(pass);
  }

  /// The optimizer's step: counts, and shows in the parameters, when the step commits, at every rank or at none.
  template <optimizer O>
  void update(O& by, double learning_rate) {
    by.apply(learning_rate);
  }
  template <optimizer O>
  void update(O& by, const schedule& rate) {
    by.apply(rate(*this));
  }
  /// A step of the user's own, such as that of LibTorch's optimizer: calls `by`, which reads the gradients and changes
  /// parameters of the arena. That shows, and counts, when the step commits; state of its own it must be able to leave
  /// as it is when the step fails. Throws configuration_error when it called a collective, and what it throws.
  void update(const std::function<void()>& by);

  /// Counts `value` with that weight: what an epoch reports under this name is the weighted mean over its steps and
  /// ranks; nothing when the weight is 0. What a step reports that is run again counts once. Throws training_error
  /// when the value is not finite, naming step and rank: the training has diverged.
  void report(std::string_view name, double value, double weight = 1.0);
  void report(std::string_view name, double value, std::integral auto samples) {
    report(name, value, static_cast<double>(samples));
  }
  /// The same of values that are added up already, as a loss over so many samples.
  void report_sum(std::string_view name, double sum, double weight);

 private:
  friend class training;
  training_step(training& of, const step& now);
  [[nodiscard]] gradient_sync& sync() const noexcept;
  void count(std::span<const minibatch> batches, backward_pass& pass);
  void count(const backward_pass& pass);

  training* of_;
};

/// What came of an epoch, the same at every rank.
struct epoch_summary {
  std::uint64_t epoch = 0;                                ///< from 1
  std::uint64_t samples = 0;                              ///< that steps were made with, of all ranks
  double seconds = 0;                                     ///< at rank 0, evaluation and checkpoints left out
  std::vector<std::pair<std::string, double>> reports{};  ///< by name, in alphabetical order

  /// The mean of what was reported under that name; NaN when nothing was.
  [[nodiscard]] double operator[](std::string_view name) const noexcept;
};

/// How long a training lasts, and what goes with it. Limits count from the start of the training, not of the process.
struct train_options {
  std::uint64_t epochs = 0;  ///< ends with so many; 0: `steps` says
  std::uint64_t steps = 0;   ///< ends with so many; 0: `epochs` says. An epoch that it cuts off is summed up too
  /// Ends when it has trained for so long at rank 0, evaluations and checkpoints left out, which is looked at once a
  /// second; in an elastic job after the epoch. 0: no limit.
  double max_seconds = 0;
  /// The report that says how good an epoch was, and where it is to go, "up" or "down": the best checkpoint is one of
  /// those that stay, a schedule among the owners observes it, and `patience` waits for it.
  std::string metric = "val_accuracy up";
  std::uint64_t patience = 0;  ///< ends when so many epochs in a row were not better than the best; 0: never
  /// Ends the training when it is true of the last epoch: the same at every rank, whenever it is asked.
  std::function<bool(const epoch_summary&)> stop{};
  std::string checkpoint{};  ///< folder of checkpoints, see muster/train/checkpoint.hpp; empty: none are written
  /// How often: "epoch", "5 epochs", "1000 steps", "10 minutes" (looked at every 100 steps), or "auto": what
  /// `checkpoint_interval` makes of the last save's cost and the failures so far. And always at the end.
  std::string checkpoint_every = "epoch";
  std::size_t keep = 3;  ///< the last so many checkpoints stay
  bool resume = true;    ///< goes on from the newest checkpoint, if there is one
  /// After each epoch, as an evaluation: with collectives over the step's group, and reports that belong to the epoch.
  /// Where ranks have weights of their own (`sync_mode`), they have their mean in it.
  std::function<void(training_step&)> each_epoch{};
  /// Collective: what ranks do when they meet, at the start and whenever some came or went, such as to compare their
  /// data. `joined` says that this rank came to a training under way. Kept until the next run.
  std::function<void(group& ranks, bool joined)> each_group{};
  /// Rank 0 writes there how the training goes, and a line an epoch; null: nothing. A terminal at stderr shows the
  /// progress within an epoch.
  std::FILE* log = stdout;
  std::function<void(const epoch_summary&)> print{};  ///< of rank 0, instead of that line
};

/// Trains a model on a loader's data, over the ranks that there are or, where the job is elastic, over those that come
/// and go:
///
///     muster::arena arena(context, model.shapes());
///     muster::sgd optimizer(arena, {.momentum = 0.9f});
///     muster::training training(context, arena, optimizer, loader);  // without one where updates are the user's own
///     training.run({.epochs = 10, .checkpoint = "checkpoints"}, [&](muster::training_step& step) {
///       const auto batch = step.next(loader);
///       step.backward(batch, [&](const auto& part, auto& pass) { model.forward_backward(part, pass); });
///       step.update(optimizer, 0.1);
///       step.report("loss", model.loss());
///     });
///
/// It owns the state (what is given, and its own reports), the session and the gradient_sync, which is that of the job:
/// `--mode`, `--compress`. A tracker among the owners is told of batches and epochs, a schedule of the metric. All that
/// is given is referred to and must outlive it, but for temporaries. One rank's; made and used by the thread that is
/// the rank.
class training {
 public:
  /// `others` are further owners of state: batch norms, random streams, a tracker, one's own. Throws
  /// configuration_error for a mode without gradients of all ranks (ps), or parts of one name.
  template <optimizer O, class... Others>
  training(context& of, arena& values, O& by, loader& data, Others&&... others)
      : training(of, sync_of_job(of), values, data, by, std::forward<Others>(others)...) {}
  template <class... Others>
  training(context& of, arena& values, loader& data, Others&&... others)
      : training(of, sync_of_job(of), values, data, std::forward<Others>(others)...) {}
  /// With other options of the gradient_sync; `sync_of_job` is where to begin from.
  template <optimizer O, class... Others>
  training(context& of, const sync_options& how, arena& values, O& by, loader& data, Others&&... others)
      : training(of, how, values, data, by, std::forward<Others>(others)...) {}
  template <class... Others>
  training(context& of, const sync_options& how, arena& values, loader& data, Others&&... others)
      : context_(of),
        session_(open_session(of)),
        data_(data),
        arena_(values),
        sync_(values, how),
        state_(values, std::forward<Others>(others)..., *this, data.cursor()) {
    (note(others), ...);
  }
  training(const training&) = delete;
  training& operator=(const training&) = delete;

  /// Calls `f(step)` for batch after batch, to the end that the options say: see `session::run` for what `f` may do.
  /// Goes on from a checkpoint; where that is at the end already, says so and returns. SIGTERM to any rank, within
  /// about a second, has all ranks finish a step, save, and throw `elastic::departure` (exit status 143); in an elastic
  /// job the rank leaves and the others go on; where too few are left, one of them saves (`departure::should_save`).
  /// Throws configuration_error for options that it cannot use, and what `f`, the session and checkpoints throw.
  void run(const train_options& options, const std::function<void(training_step&)>& f);
  /// Runs `f(step)` once between steps, as `session::evaluate` does.
  template <std::invocable<step&> F>
  bool evaluate(F&& f) {
    return session_.evaluate(state_, std::forward<F>(f));
  }

  /// Of the epochs that ended, also before this process began.
  [[nodiscard]] const std::vector<epoch_summary>& epochs() const noexcept { return epochs_; }
  /// How often it went on from a checkpoint that was not written at an end: what came after that was lost.
  [[nodiscard]] std::uint64_t failures() const noexcept { return failures_; }
  [[nodiscard]] muster::state& state() noexcept { return state_; }
  [[nodiscard]] muster::session& session() noexcept { return session_; }
  [[nodiscard]] gradient_sync& sync() noexcept { return sync_; }

  /// As `--mode` and `--compress` say.
  [[nodiscard]] static sync_options sync_of_job(const context& of);
  /// As an owner of state: its epochs, and what the ranks have reported since the last one.
  void describe(state_parts& parts);

 private:
  friend class training_step;
  struct sum {
    std::string name;
    double values = 0;
    double weights = 0;
  };
  struct sums {
    std::uint64_t samples = 0;  // of all ranks, where they exchange gradients; else of this one
    std::uint64_t own_samples = 0;
    double seconds = 0;
    std::vector<sum> of;
    void add(std::string_view name, double values, double weights);
    void add(const sums& more);
  };

  struct one_run;

  muster::session open_session(context& of) {
#ifdef MUSTER_HAS_TCP
    if (of.elastic()) {
      return elastic::session(of, {.on_rebuild = [this](group& ranks, const elastic::change& what) {
                                if (meet_) meet_(ranks, what.generation > 1 && what.rank_before < 0);
                              }});
    }
#endif
    return fixed_session(of);
  }
  void note(tracker& told) noexcept { tracker_ = &told; }
  void note(schedule& told) noexcept { schedule_ = &told; }
  template <class T>
  void note(T&) noexcept {}

  context& context_;
  std::function<void(group& ranks, bool joined)> meet_;
  muster::session session_;
  loader& data_;
  arena& arena_;
  gradient_sync sync_;
  tracker* tracker_ = nullptr;
  schedule* schedule_ = nullptr;
  std::vector<epoch_summary> epochs_;
  std::uint64_t failures_ = 0;
  bool goes_on_ = false;  // a checkpoint is being written that is not at an end: to go on from it is another failure
  sums here_;             // of committed steps since the last epoch ended
  sums of_step_;          // of the attempt under way
  /// Updates of the user's own that wait for the commit.
  struct {
    std::vector<float> before, after;
    bool wait = false;
  } own_updates_;
  muster::state state_;
};

}  // namespace muster::inline v0
