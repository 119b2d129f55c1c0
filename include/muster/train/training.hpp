// A complete training: loader, arena, optimizer, checkpoints and reports combined.
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

#include <muster/core/inline.hpp>
#include <muster/data/loader.hpp>
#ifdef MUSTER_HAS_TCP  // elastic sessions need the tcp transport
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
class parameter_server_backend;
class speed_balance;

template <class T>
concept trained_gradients = std::convertible_to<T, arena&> || std::same_as<T, std::unique_ptr<gradient_backend>>;

// A model that computes gradients itself, in its own arena.
template <class Model, class... Loss>
concept model_with_backward = requires(Model& model, backward_pass& pass, const minibatch& batch, Loss&... loss) {
  model.backward(pass, batch, loss...);
};

// An optimizer with its own learning rate.
template <class O>
concept self_paced_optimizer = optimizer<O> && requires(const O& candidate) {
  { candidate.learning_rate() } -> std::convertible_to<double>;
};

// The state of a model beside its arena: none.
struct no_further_state {
  void describe(state_parts& /*parts*/) const noexcept {}
};
// Returns the owner of the state that a model has beside its arena.
template <class V>
decltype(auto) state_beside_arena(V& values) {
  if constexpr (state_owner<V&> && !std::derived_from<V, arena_base>)
    return static_cast<V&>(values);
  else
    return no_further_state{};
}
}

/// The view of one step that a training's function receives; in `each_epoch`, an evaluation. Valid during that call.
class training_step : public step {
 public:
  /// Returns this rank's part of the batch, the argument of the loader's `next`. With virtual shards the part consists
  /// of whole shards.
  [[nodiscard]] batch_shard shard() const noexcept;
  /// Reads that part of the batch, see `loader::next`.
  [[nodiscard]] minibatch next(loader& source) { return read_ = source.next(shard()); }

  /// Calls `f(batch, pass)`, which computes the gradients of the batch from `pass.parameter(t)` into `pass.gradient(t)`
  /// (see `backward_pass`), and waits until the gradients are the mean over the global batch, at every rank. The call
  /// also counts the samples of the batch. The reduction of a gradient starts at its `ready`, or else when `f` returns.
  /// With `sync_options::virtual_shards` the call runs `f` once for each shard of the rank.
  template <class F>
  void backward(const minibatch& batch, F&& f) {
    backward_over(parts_of(batch), f);
  }
  /// Does the same for micro-batches, as `batch.split(4)` makes them. Their gradients are added up (`pass.adds(t)`) and
  /// reduced in the last micro-batch. Throws configuration_error with virtual shards.
  template <class F>
  void backward(std::span<const minibatch> batches, F&& f) {
    backward_over(micro_batches(batches), f);
  }
  /// Does the same for a model that computes its gradients from a loss, such as `muster::torch::data_parallel`, and the
  /// part that `next` has read last. Throws configuration_error if `next` has read none, and with virtual shards.
  template <class Model, class... Loss>
  requires detail::model_with_backward<Model, Loss...>
  void backward(Model& model, Loss&&... loss) {
    backward(part_read(), [&](const minibatch& batch, backward_pass& pass) { model.backward(pass, batch, loss...); });
  }
  /// Computes the mean over all virtual shards of a row of values per shard, with the same bits for any number of
  /// ranks. Collective. The mean serves statistics of a batch, such as the statistics for batch normalisation. `mine`
  /// has a row of `means.size()` values for each local shard, in the order of the shards. Throws configuration_error
  /// for another size, and the errors of an allreduce.
  void mean_over_shards(std::span<const float> mine, std::span<float> means);

  /// Fetches these elements of the arena's parameters from the servers, before `backward`, in mode ps with
  /// `sync_options::sparse`. The elements are those whose gradients this step computes, in ascending order. Their
  /// gradients are zeros afterwards, so the model need not clear them. Does nothing without `sparse`, where `backward`
  /// fetches all elements from the servers.
  void pull(std::span<const std::uint64_t> elements);

  /// Requests the optimizer's step with the present gradients. In mode allreduce the optimizer's step runs when the
  /// training step commits, at every rank or at none, so a later `backward` throws configuration_error. In the modes
  /// that exchange weights it runs at once, and is undone if the training step fails. In mode ps the gradients are
  /// pushed instead, and the servers run the optimizer's step. In an elastic job, or with checkpoints, throws
  /// configuration_error for an optimizer that keeps state and was not passed to the training.
  template <optimizer O>
  void update(O& updater, double learning_rate) {
    if (pushes(learning_rate)) return;
    if (must_own(&updater)) require_owned([&updater](state_parts& parts) { updater.describe(parts); });
    updater.apply(learning_rate);
  }
  template <optimizer O>
  void update(O& updater, const schedule& rate) {
    update(updater, rate(*this));
  }
  /// Does the same for an optimizer with its own learning rate, such as `muster::torch::optimizer_state`.
  template <detail::self_paced_optimizer O>
  void update(O& updater) {
    update(updater, updater.learning_rate());
  }
  /// Calls `change`, a user-defined update such as the step of LibTorch's optimizer. `change` reads the gradients and
  /// changes parameters of the arena. The parameters change when the step commits. Any other state of `change`, such as
  /// a momentum, must belong to the training's state, through an owner that restores it when the step fails. In an
  /// elastic job and with checkpoints some steps therefore call `change` a second time, with the same parameters,
  /// gradients and state, and throw configuration_error when the results differ. Also throws configuration_error if
  /// `change` called a collective, and for parameters on a device. Passes on the exceptions of `change`.
  void update(const std::function<void()>& change);

  /// Adds `value` with a weight to the report of the epoch under this name, the weighted mean over steps and ranks. A
  /// weight of 0 adds nothing. The reports of a repeated step count once. Throws training_error, with step and rank,
  /// when the value is not finite: the training has diverged, or a record of the batch, which the error names, has such
  /// a number.
  void report(std::string_view name, double value, double weight = 1.0);
  void report(std::string_view name, double value, std::integral auto samples) {
    report(name, value, static_cast<double>(samples));
  }
  /// Does the same for a sum of values, such as a loss summed over samples, and the number of values.
  void report_sum(std::string_view name, double sum, double weight);

 private:
  friend class training;
  training_step(training& owner, const step& current);
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
  [[nodiscard]] const minibatch& part_read() const;
  [[nodiscard]] std::span<const minibatch> parts_of(const minibatch& batch);
  [[nodiscard]] std::span<const minibatch> micro_batches(std::span<const minibatch> batches) const;
  [[nodiscard]] backward_pass begin(int passes);
  // Counts the samples of this rank's batches, before the passes.
  void count(std::span<const minibatch> batches, backward_pass& pass);
  // Counts the samples of all ranks, after the passes; with servers, the samples of this rank.
  void count(const backward_pass& pass);
  void require_repeatable(const std::function<void()>& change);
  // Returns true if the training's state must own the updater. Called once for each updater.
  [[nodiscard]] bool must_own(const void* updater);
  void require_owned(const std::function<void(state_parts&)>& describe);
  // Returns true with servers. The gradients are then pushed before the step commits.
  [[nodiscard]] bool pushes(double learning_rate);

  training* training_;
  minibatch read_{};                  // the part that `next` read last
  std::vector<minibatch> batches_{};  // the batches of `backward`
};

/// The results of an epoch, the same at every rank.
struct epoch_summary {
  std::uint64_t epoch = 0;                                ///< number of the epoch, from 1
  std::uint64_t samples = 0;                              ///< samples of committed steps, over all ranks
  double seconds = 0;                                     ///< time at rank 0 without evaluations and checkpoints
  std::vector<std::pair<std::string, double>> reports{};  ///< by name, in alphabetical order

  /// Returns the mean of the values reported under that name; NaN without any.
  [[nodiscard]] double operator[](std::string_view name) const noexcept;
};

/// Options of `training::run`. Limits count from the start of the training, not of the process.
struct train_options {
  std::uint64_t epochs = 0;  ///< limit; 0: `steps` limits the training
  std::uint64_t steps = 0;   ///< limit; 0: `epochs` limits the training. An incomplete last epoch is reported too
  /// Limit of the training time of rank 0 in seconds, without evaluations and checkpoints. Checked once a second, in an
  /// elastic job after each epoch. 0: no limit.
  double max_seconds = 0;
  /// The report that measures an epoch, and its direction, "val_accuracy up" or "loss down". The metric selects the
  /// best checkpoint, a schedule among the owners observes it, and `patience` refers to it.
  std::string metric = "val_accuracy up";
  std::uint64_t patience = 0;  ///< ends the training after this many epochs without a new best; 0: never
  /// Ends the training when it returns true for the last epoch. The result must depend on the epoch only and be equal
  /// at every rank.
  std::function<bool(const epoch_summary&)> stop{};
  std::string checkpoint{};  ///< folder of checkpoints, see muster/train/checkpoint.hpp; empty: none are written
  /// The interval of checkpoints: "epoch", "5 epochs", "1000 steps", "10 minutes" (checked every 100 steps), or "auto":
  /// `checkpoint_interval` of the last save's cost and the failures so far. The last checkpoint is written at the end.
  std::string checkpoint_every = "epoch";
  std::size_t keep = 3;  ///< number of newest checkpoints to keep
  bool resume = true;    ///< resumes from the newest checkpoint, if there is one
  /// Called after each epoch, as an evaluation. It may call collectives over the step's group, and its reports belong
  /// to the epoch. Where ranks have different weights (`sync_mode`), it runs with the mean of the weights.
  std::function<void(training_step&)> each_epoch{};
  /// Called after the last step, as an evaluation, for example to save the model or to report. Its own reports are
  /// dropped. It also runs with the mean of the ranks' weights. When `run` returns each rank has its own weights again.
  std::function<void(training_step&)> at_end{};
  /// Called at the start and after each change of the membership, for example to compare the data of the ranks.
  /// Collective. `joined`: this rank has joined a running training. Used until the next run.
  std::function<void(group& ranks, bool joined)> each_group{};
  /// Stream to which rank 0 writes a line for each epoch, and a line when the training resumes, ends by `patience`, or
  /// had ended before; null: nothing. Unless null, stderr also shows the progress, as `progress_line`
  /// describes.
  std::FILE* log = stdout;
  std::function<void(const epoch_summary&)> print{};  ///< called at rank 0 unless `log` is null, instead of writing
                                                      ///< the line of the epoch
};

/// A training of a model on a loader's data, over fixed ranks or, in an elastic job, over ranks that leave, fail and
/// join:
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
/// With `--mode ps` the last ranks are servers, which hold the parameters and apply the optimizer to the gradients that
/// the other ranks, the workers, push at their own pace (docs/parameter_server.md). The servers assign data to the
/// workers, and the other workers replace a worker that dies. In an elastic job workers also join. `step.group()` is
/// then the group of the workers that were started (in an elastic job this worker alone). Epochs, reports and
/// evaluations are those of the first living worker alone, and checkpoints are the tables of the servers.
///
/// Owns the state (of the arguments and its own reports), the session, and the gradient_sync according to `--mode` and
/// `--compress`. It passes batches and epochs to a tracker among the owners, and the metric to a schedule. Arguments
/// are referenced and must outlive the training, except for temporaries. Each rank creates its own training, and uses
/// it on the thread that is the rank.
class training {
 public:
  /// Takes an arena on the host, `arena&`, or gradients in other memory, `std::unique_ptr<gradient_backend>` such as
  /// the result of `gradients_on(device_arena)`. In the second case `backward` gives no views of tensors (`ready` is
  /// called for each tensor), and options for the host alone are rejected: mode ps, modes that exchange weights,
  /// codecs, virtual shards, user-defined updates. A model with its own arena, such as `muster::torch::data_parallel`,
  /// is passed instead of the arena, and the state that it has beside the arena joins the training's state.
  ///
  /// Collective in mode ps. `others` are further owners of state: batch norms, random streams, a tracker, user-defined
  /// owners. Throws configuration_error for parts with equal names, and in mode ps for an optimizer that servers cannot
  /// apply, and the errors of `ps::job`.
  template <detail::trained_gradients V, class O, class... Others>
  requires optimizer<std::remove_cvref_t<O>> training(context& ctx, V&& values, O&& updater, loader& training_data,
                                                      Others&&... others)
      : training(ctx, sync_of_job(ctx), std::forward<V>(values), training_data, std::forward<O>(updater),
                 std::forward<Others>(others)...) {}
  template <detail::trained_gradients V, class... Others>
  training(context& ctx, V&& values, loader& training_data, Others&&... others)
      : training(ctx, sync_of_job(ctx), std::forward<V>(values), training_data, std::forward<Others>(others)...) {}
  /// Uses other options of the gradient_sync, derived from the result of `sync_of_job`.
  template <detail::trained_gradients V, class O, class... Others>
  requires optimizer<std::remove_cvref_t<O>> training(context& ctx, const sync_options& options, V&& values,
                                                      O&& updater, loader& training_data, Others&&... others)
      : training(ctx, options, std::forward<V>(values), training_data, std::forward<O>(updater),
                 std::forward<Others>(others)...) {}
  template <detail::trained_gradients V, class... Others>
  training(context& ctx, const sync_options& options, V&& values, loader& training_data, Others&&... others)
      : context_(ctx),
        on_servers_(options.mode.method == sync_mode::kind::parameter_server),
        session_(open_session(ctx)),
        data_(training_data),
        sync_(std::forward<V>(values), of_ranks(options)),
        balance_(balance_of(ctx, options)),
        initial_values_(initial_values_on_servers(options)),
        state_(sync_.base_arena(), detail::state_beside_arena(values), std::forward<Others>(others)...,
               followed_data(training_data), *this, training_data.cursor()) {
    (note(others), ...);
    refuse_shards_of(training_data.cursor());
    if (on_servers_) open_servers(options);
  }
  training(const training&) = delete;
  training& operator=(const training&) = delete;

  /// Calls `f(step)` for each batch until a limit of the options is reached. `session::run` documents the allowed
  /// operations of `f`. Resumes from a checkpoint. If that checkpoint is at the end, prints so and returns. After
  /// SIGTERM to any rank all ranks finish a step within about a second, save, and throw `elastic::departure` (exit
  /// status 143). In an elastic job only that rank leaves. If too few ranks are left, or all leave, one rank saves
  /// (`departure::should_save`). Throws configuration_error for invalid options, and the exceptions of `f`, the session
  /// and checkpoints.
  ///
  /// In mode ps call it once: a server serves until all workers have finished, and SIGTERM has its default effect. Each
  /// worker returns at its end, the first worker with the final parameters. `max_seconds`, `stop` and `patience`, with
  /// which one worker would end the others, are then rejected.
  void run(const train_options& options, const std::function<void(training_step&)>& f);
  /// Runs `f(step)` once between steps, as `session::evaluate` does; in mode ps at the first worker alone. Returns
  /// false where `f` did not run to its end: at a rank that skips the evaluation, and at the other workers.
  template <std::invocable<step&> F>
  bool evaluate(F&& f) {
    return evaluate_once([&f](step& evaluation) { f(evaluation); });
  }

  /// Returns true if this is the rank that reports: rank 0 of the session, in mode ps the first living worker.
  [[nodiscard]] bool is_root();

  /// Returns the finished epochs, including the epochs before this process started.
  [[nodiscard]] const std::vector<epoch_summary>& epochs() const noexcept { return epochs_; }
  /// Returns how often the training resumed from a checkpoint before its end, so that later steps were lost.
  [[nodiscard]] std::uint64_t failures() const noexcept { return failures_; }
  /// Returns the bytes of gradients or weights, as encoded, that this process has sent in committed steps.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept;
  [[nodiscard]] muster::state& state() noexcept { return state_; }
  [[nodiscard]] muster::session& session() noexcept { return session_; }
  [[nodiscard]] gradient_sync& sync() noexcept { return sync_; }

  /// Returns the options according to `--mode` and `--compress`.
  [[nodiscard]] static sync_options sync_of_job(const context& ctx);
  /// Describes the state to a session: the finished epochs, and every rank's later reports as of the last
  /// checkpoint.
  void describe(state_parts& parts);

 private:
  friend class training_step;
  struct sum {
    std::string name;
    double values = 0;
    double weights = 0;
  };
  struct sums {
    std::uint64_t samples = 0;  // over all ranks where they exchange gradients, otherwise at this rank
    std::uint64_t own_samples = 0;
    double seconds = 0;
    std::vector<sum> entries;
    void add(std::string_view name, double values, double weights);
    void add(const sums& more);  // adds the samples and the entries; not `own_samples`, and not the time
  };

  struct training_run;

  muster::session open_session(context& ctx) {
#ifdef MUSTER_HAS_TCP
    if (ctx.elastic() && !on_servers_) {
      return elastic::session(ctx, {.on_rebuild = [this](group& ranks, const elastic::change& change_info) {
                                if (each_group_)
                                  each_group_(ranks, change_info.generation > 1 && change_info.rank_before < 0);
                              }});
    }
#endif
    return fixed_session(ctx);
  }
  // Returns the options for the exchange among the training ranks. With servers the ranks exchange nothing, since the
  // servers apply the pushed gradients.
  static sync_options of_ranks(sync_options options);
  void open_servers(const sync_options& options);
  // Takes the function from the arena by which servers compute the initial values of a dense table; empty without.
  [[nodiscard]] std::function<void(std::size_t, std::span<float>)> initial_values_on_servers(
      const sync_options& options);
  [[nodiscard]] static std::shared_ptr<detail::speed_balance> balance_of(const context& ctx,
                                                                         const sync_options& options);
  void refuse_shards_of(const cursor& position) const;
  // Returns the arena on the host. Throws configuration_error that begins with `problem` ("mode ps cannot be used") if
  // the arena is on a device.
  [[nodiscard]] arena& on_host(const char* problem);
  bool evaluate_once(const std::function<void(step&)>& f);
  void note(tracker& owner) noexcept { tracker_ = &owner; }
  void note(schedule& owner) noexcept { schedule_ = &owner; }
  template <class T>
  void note(T& owner) {
    if constexpr (served_optimizer<T>) {
      if (on_servers_) server_update_ = owner.server_update();
    }
  }

  context& context_;
  const bool on_servers_;
  std::string server_update_;
  std::shared_ptr<detail::parameter_server_backend> servers_;  // set in mode ps; shared because the type is incomplete
  std::optional<double> pushed_rate_;                          // learning rate of the current step's push
  std::function<void(group& ranks, bool joined)> each_group_;
  muster::session session_;
  loader& data_;
  gradient_sync sync_;
  std::shared_ptr<detail::speed_balance> balance_;  // null: equal parts; shared because the type is incomplete
  tracker* tracker_ = nullptr;
  schedule* schedule_ = nullptr;
  std::vector<epoch_summary> epochs_;
  std::uint64_t measured_at_ = 0;  // committed steps of the state that the last epoch measured
  std::uint64_t failures_ = 0;
  std::uint64_t bytes_sent_ = 0;
  bool ran_ = false;
  bool continues_ = false;  // a checkpoint before the end is being written: resuming from it counts as another failure
  sums unreported_;         // sums over committed steps since the last epoch ended
  sums saved_;              // the sums over all ranks at the last save
  std::uint64_t saved_at_ = 0;     // committed steps at the last save
  sums step_sums_;                 // sums of the current attempt at a step
  bool optimizer_waits_ = false;   // true while an optimizer's update waits for the commit
  std::vector<minibatch> shards_;  // virtual shards of the current batch
  /// User-defined updates that wait for the commit.
  struct {
    std::vector<float> before, after;
    bool wait = false;
    const void* owned = nullptr;  // the last optimizer whose state was found to be owned
    bool must_repeat = false;     // since state of the updates would be lost with a rank, or is not in a checkpoint
    std::uint64_t steps = 0;      // number of steps with such updates
  } own_updates_;
  std::function<void(std::size_t, std::span<float>)> initial_values_;  // in mode ps, until the tables are made
  muster::state state_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
