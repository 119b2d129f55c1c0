// A whole training: loader, arena, optimizer, checkpoints and reports put together.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
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
#include <muster/elastic/followed_data.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/optimizers/schedule.hpp>
#include <muster/train/sync/gradient_sync.hpp>
#include <muster/train/tracker.hpp>

namespace muster { inline namespace v0 {

class training;

namespace detail {
class served;
class speed_balance;

template <class T>
concept trained_gradients = std::convertible_to<T, arena&> || std::same_as<T, std::unique_ptr<gradient_backend>>;
}

/// One step of a training, as its function sees it; in `each_epoch`, an evaluation. Valid while that runs.
class training_step : public step {
 public:
  /// This rank's part of the batch: what the loader's next() is given; whole virtual shards where there are any.
  [[nodiscard]] batch_shard shard() const noexcept;
  /// That part, see `loader::next`.
  [[nodiscard]] minibatch next(loader& from) const { return from.next(shard()); }

  /// Calls `f(batch, pass)`, which computes the gradients of the batch from `pass.parameter(t)` into `pass.gradient(t)`
  /// (see `backward_pass`), and waits until they are the mean over the global batch, at every rank. The samples of the
  /// batch are counted here. The reduction of a gradient starts at its
  /// `ready`, or else when `f` returns. With `sync_options::virtual_shards` it calls `f` for each of the rank's shards.
  template <class F>
  void backward(const minibatch& batch, F&& f) {
    backward_over(parts_of(batch), f);
  }
  /// The same for micro-batches, as `batch.split(4)` makes them: their gradients are added up (`pass.adds(t)`) and
  /// reduced in the last one. Throws configuration_error where there are virtual shards.
  template <class F>
  void backward(std::span<const minibatch> batches, F&& f) {
    backward_over(micro_batches(batches), f);
  }
  /// With virtual shards, collective: the mean, over all shards, of what each has computed, with the same bits in any
  /// world; for statistics of a batch, as batch normalisation keeps them. `mine` has a row of `means.size()` values for
  /// each shard of this rank, in their order. Throws configuration_error for another size, and the errors of an
  /// allreduce.
  void mean_over_shards(std::span<const float> mine, std::span<float> means);

  /// With mode ps and `sync_options::sparse`: fetches these elements of the arena's parameters from the servers, before
  /// `backward`; those that the gradients of this step are of, in ascending order. The gradients are zeros then, and
  /// the model need not clear them. Otherwise nothing, since `backward` fetches all where there are servers.
  void pull(std::span<const std::uint64_t> elements);

  /// The optimizer's step: takes effect when the step commits, at every rank or at none, by the gradients that there
  /// are then. So in mode allreduce `backward` throws configuration_error behind it.
  /// Throws configuration_error, in an elastic job and with checkpoints, for an optimizer that keeps something and was
  /// not passed to the training.
  template <optimizer O>
  void update(O& by, double learning_rate) {
    if (pushes(learning_rate)) return;
    if (must_own(&by)) require_owned([&by](state_parts& parts) { by.describe(parts); });
    by.apply(learning_rate);
  }
  template <optimizer O>
  void update(O& by, const schedule& rate) {
    update(by, rate(*this));
  }
  /// A user-defined update, such as that of LibTorch's optimizer: calls `by`, which reads the gradients and changes
  /// parameters of the arena. The parameters change when the step commits. Whatever else `by` keeps from step to step,
  /// such as a momentum, is a part of the training's state, of an owner that restores it when the step fails: in an
  /// elastic job and with checkpoints some steps call `by` a second time, with the same parameters, gradients and
  /// state, and throw configuration_error when it does not do the same. Throws it, too, if `by` called a collective,
  /// and for parameters on a device; and the exceptions of `by`.
  void update(const std::function<void()>& by);

  /// Adds `value` with a weight to the report of the epoch under this name, the weighted mean over steps and ranks; 0
  /// adds nothing. The reports of a repeated step count once. Throws training_error, with step and rank, when the value
  /// is not finite: the training has diverged, or a record of the batch, which the error names, has such a number.
  void report(std::string_view name, double value, double weight = 1.0);
  void report(std::string_view name, double value, std::integral auto samples) {
    report(name, value, static_cast<double>(samples));
  }
  /// The same for a sum of values, such as a loss summed over samples, and their number.
  void report_sum(std::string_view name, double sum, double weight);

 private:
  friend class training;
  training_step(training& of, const step& now);
  template <class F>
  void backward_over(std::span<const minibatch> batches, F& f) {
    auto pass = begin(static_cast<int>(batches.size()));
    count(batches, pass);
    for (const minibatch& batch : batches) {
      f(batch, pass);
      pass.end_pass();
    }
    pass.wait();
    count(pass);
  }
  [[nodiscard]] std::span<const minibatch> parts_of(const minibatch& batch);
  [[nodiscard]] std::span<const minibatch> micro_batches(std::span<const minibatch> batches) const;
  [[nodiscard]] backward_pass begin(int passes);
  void count(std::span<const minibatch> batches, backward_pass& pass);
  void count(const backward_pass& pass);
  void require_repeatable(const std::function<void()>& by);
  // Asked once of each that updates.
  [[nodiscard]] bool must_own(const void* by);
  void require_owned(const std::function<void(state_parts&)>& describe);
  // With servers: true, and the gradients are pushed before the step commits.
  [[nodiscard]] bool pushes(double learning_rate);

  training* of_;
  std::vector<minibatch> batches_{};  // of `backward`
};

/// The results of an epoch, the same at every rank.
struct epoch_summary {
  std::uint64_t epoch = 0;                                ///< from 1
  std::uint64_t samples = 0;                              ///< of committed steps, over all ranks
  double seconds = 0;                                     ///< at rank 0, evaluation and checkpoints left out
  std::vector<std::pair<std::string, double>> reports{};  ///< by name, in alphabetical order

  /// The mean of the values reported under that name; NaN without any.
  [[nodiscard]] double operator[](std::string_view name) const noexcept;
};

/// Options of `training::run`. Limits count from the start of the training, not of the process.
struct train_options {
  std::uint64_t epochs = 0;  ///< limit; 0: by `steps`
  std::uint64_t steps = 0;   ///< limit; 0: by `epochs`. An incomplete last epoch is reported too
  /// Limit of the training time of rank 0, evaluations and checkpoints left out, checked once a second; in an elastic
  /// job after each epoch. 0: none.
  double max_seconds = 0;
  /// The report that measures an epoch, and its direction, "val_accuracy up" or "loss down": the best checkpoint is
  /// kept, a schedule among the owners observes it, and `patience` refers to it.
  std::string metric = "val_accuracy up";
  std::uint64_t patience = 0;  ///< ends after so many epochs without a new best; 0: never
  /// Ends the training when it returns true for the last epoch: a function of the epoch, equal at every rank.
  std::function<bool(const epoch_summary&)> stop{};
  std::string checkpoint{};  ///< folder of checkpoints, see muster/train/checkpoint.hpp; empty: none are written
  /// The interval of checkpoints: "epoch", "5 epochs", "1000 steps", "10 minutes" (checked every 100 steps), or "auto":
  /// `checkpoint_interval` of the last save's cost and the failures so far. The last one is at the end.
  std::string checkpoint_every = "epoch";
  std::size_t keep = 3;  ///< how many of the last checkpoints stay
  bool resume = true;    ///< resumes from the newest checkpoint, if there is one
  /// After each epoch, as an evaluation: with collectives over the step's group, and reports that belong to the epoch.
  /// Where ranks have different weights (`sync_mode`), it runs with their mean.
  std::function<void(training_step&)> each_epoch{};
  /// After the last step, as an evaluation: to save the model, to report. Its reports are dropped. It runs with the
  /// mean of the ranks' weights, too, which `run` does not leave: after it each rank has its own again.
  std::function<void(training_step&)> at_end{};
  /// Collective: called at the start and after each change of the membership, for example to compare the data of the
  /// ranks. `joined`: this rank has joined a running training. Kept until the next run.
  std::function<void(group& ranks, bool joined)> each_group{};
  /// Rank 0 writes start, end and a line for each epoch to it; null: nothing. If stderr is a terminal it shows the
  /// progress within an epoch.
  std::FILE* log = stdout;
  std::function<void(const epoch_summary&)> print{};  ///< of rank 0, instead of that line
};

/// Trains a model on a loader's data, over fixed ranks or, in an elastic job, over ranks that leave, fail and join:
///
///     muster::arena arena(context, model.shapes());
///     muster::sgd optimizer(arena, {.momentum = 0.9f});
///     muster::training training(context, arena, optimizer, loader);  // no optimizer for user-defined updates
///     training.run({.epochs = 10, .checkpoint = "checkpoints"}, [&](muster::training_step& step) {
///       const auto batch = step.next(loader);
///       step.backward(batch, [&](const auto& part, auto& pass) { model.forward_backward(part, pass); });
///       step.update(optimizer, 0.1);
///       step.report("loss", model.loss());
///     });
///
/// With `--mode ps` the last ranks are servers, which hold the parameters and apply the optimizer to what the others,
/// the workers, push at their own pace (docs/parameter_server.md). They train what the servers hand out, and a worker
/// that dies is replaced by the others; in an elastic job workers also join. `step.group()` is then the workers that
/// were started (in an elastic job this one alone); epochs, reports and evaluations are those of the first worker that
/// lives alone, and checkpoints are the tables of the servers.
///
/// Owns the state (of the arguments and its own reports), the session, and the gradient_sync by `--mode` and
/// `--compress`. It passes batches and epochs to a tracker among the owners, and the metric to a schedule. Arguments
/// are referenced and must outlive it, except for temporaries. Each rank makes its own, and uses it on the thread that
/// is the rank.
class training {
 public:
  /// Of an arena on the host, `arena&`, or of gradients in other memory, `std::unique_ptr<gradient_backend>` as of
  /// `gradients_on(device_arena)`: then `backward` gives no views of tensors (`ready` is called for each), and what is
  /// for the host alone is refused: mode ps, modes that exchange weights, codecs, virtual shards, user-defined updates.
  ///
  /// Collective in mode ps. `others` are further owners of state: batch norms, random streams, a tracker, user-defined
  /// ones. Throws configuration_error for parts with equal names, and in mode ps for an optimizer that servers cannot
  /// apply, and what `ps::job` does.
  template <detail::trained_gradients V, optimizer O, class... Others>
  training(context& of, V&& values, O& by, loader& data, Others&&... others)
      : training(of, sync_of_job(of), std::forward<V>(values), data, by, std::forward<Others>(others)...) {}
  template <detail::trained_gradients V, class... Others>
  training(context& of, V&& values, loader& data, Others&&... others)
      : training(of, sync_of_job(of), std::forward<V>(values), data, std::forward<Others>(others)...) {}
  /// With other options of the gradient_sync, made from those of `sync_of_job`.
  template <detail::trained_gradients V, optimizer O, class... Others>
  training(context& of, const sync_options& how, V&& values, O& by, loader& data, Others&&... others)
      : training(of, how, std::forward<V>(values), data, by, std::forward<Others>(others)...) {}
  template <detail::trained_gradients V, class... Others>
  training(context& of, const sync_options& how, V&& values, loader& data, Others&&... others)
      : context_(of),
        on_servers_(how.mode.what == sync_mode::kind::parameter_server),
        session_(open_session(of)),
        data_(data),
        sync_(std::forward<V>(values), of_ranks(how)),
        balance_(balance_of(of, how)),
        state_(sync_.of(), std::forward<Others>(others)..., followed_data(data), *this, data.cursor()) {
    (note(others), ...);
    refuse_shards_of(data.cursor());
    if (on_servers_) open_servers(how);
  }
  training(const training&) = delete;
  training& operator=(const training&) = delete;

  /// Calls `f(step)` for each batch until a limit of the options; `session::run` says what `f` may do. Resumes from a
  /// checkpoint; if that is at the end, prints so and returns. After SIGTERM to any rank all ranks finish a step within
  /// about a second, save, and throw `elastic::departure` (exit status 143). In an elastic job only that rank leaves;
  /// if too few ranks are left, or all leave, one of them saves (`departure::should_save`). Throws configuration_error
  /// for invalid options, and the exceptions of `f`, the session and checkpoints.
  ///
  /// In mode ps once: a server serves until all workers have finished; SIGTERM has its default effect; each worker
  /// returns at its end, the first one with the final parameters. Then `max_seconds`, `stop` and `patience`, by which
  /// one worker would end the others, are refused.
  void run(const train_options& options, const std::function<void(training_step&)>& f);
  /// Runs `f(step)` once between steps, as `session::evaluate` does; in mode ps at the first worker alone.
  template <std::invocable<step&> F>
  bool evaluate(F&& f) {
    return evaluate_once([&f](step& now) { f(now); });
  }

  /// Whether this is the rank that reports: rank 0 of the session, in mode ps the first worker that lives.
  [[nodiscard]] bool is_root();

  /// The finished epochs, including those before this process started.
  [[nodiscard]] const std::vector<epoch_summary>& epochs() const noexcept { return epochs_; }
  /// How often the training resumed from a checkpoint that was not its end, so that later steps were lost.
  [[nodiscard]] std::uint64_t failures() const noexcept { return failures_; }
  /// Bytes of gradients or weights that this process has sent in committed steps, as they were encoded.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept;
  [[nodiscard]] muster::state& state() noexcept { return state_; }
  [[nodiscard]] muster::session& session() noexcept { return session_; }
  [[nodiscard]] gradient_sync& sync() noexcept { return sync_; }

  /// The options by `--mode` and `--compress`.
  [[nodiscard]] static sync_options sync_of_job(const context& of);
  /// As an owner of state: the finished epochs, and the reports of all ranks since then, as of the last checkpoint.
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
    if (of.elastic() && !on_servers_) {
      return elastic::session(of, {.on_rebuild = [this](group& ranks, const elastic::change& what) {
                                if (meet_) meet_(ranks, what.generation > 1 && what.rank_before < 0);
                              }});
    }
#endif
    return fixed_session(of);
  }
  // What the ranks that train exchange among themselves: nothing where servers apply what they push.
  static sync_options of_ranks(sync_options how);
  void open_servers(const sync_options& how);
  [[nodiscard]] static std::shared_ptr<detail::speed_balance> balance_of(const context& of, const sync_options& how);
  void refuse_shards_of(const cursor& data) const;
  // Throws configuration_error for gradients in other memory.
  [[nodiscard]] arena& on_host(const char* what);
  bool evaluate_once(const std::function<void(step&)>& f);
  void note(tracker& told) noexcept { tracker_ = &told; }
  void note(schedule& told) noexcept { schedule_ = &told; }
  template <class T>
  void note(T& told) {
    if constexpr (served_optimizer<T>) {
      if (on_servers_) server_update_ = told.server_update();
    }
  }

  context& context_;
  const bool on_servers_;
  std::string server_update_;
  std::shared_ptr<detail::served> served_;  // in mode ps; shared for the sake of its incomplete type
  std::optional<double> pushed_rate_;       // of the step under way
  std::function<void(group& ranks, bool joined)> meet_;
  muster::session session_;
  loader& data_;
  gradient_sync sync_;
  std::shared_ptr<detail::speed_balance> balance_;  // null: equal parts; shared for the sake of its incomplete type
  tracker* tracker_ = nullptr;
  schedule* schedule_ = nullptr;
  std::vector<epoch_summary> epochs_;
  std::uint64_t measured_at_ = 0;  // the last of them is of the state after so many steps
  std::uint64_t failures_ = 0;
  std::uint64_t bytes_sent_ = 0;
  bool ran_ = false;
  bool goes_on_ = false;  // a checkpoint is being written that is not at an end: to go on from it is another failure
  sums here_;             // of committed steps since the last epoch ended
  sums saved_;            // the same of all ranks, as of the last save
  std::uint64_t saved_at_ = 0;     // which was after so many steps
  sums of_step_;                   // of the attempt under way
  bool optimizer_waits_ = false;   // for its commit, to step by the gradients
  std::vector<minibatch> shards_;  // of the batch under way
  /// Updates of the user's own that wait for the commit.
  struct {
    std::vector<float> before, after;
    bool wait = false;
    const void* owned = nullptr;  // the optimizer that was found to be
    bool must_repeat = false;     // for what they keep would be lost with a rank, or is not in a checkpoint
    std::uint64_t steps = 0;      // that had any
  } own_updates_;
  muster::state state_;
};

}}  // namespace muster::v0
