#include "training.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/progress.hpp>
#include <muster/data/loader.hpp>
#include <muster/elastic/session.hpp>
#include <muster/ps/settings.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/optimizers/schedule.hpp>
#include <muster/train/optimizers/sgd.hpp>
#include <muster/train/settings.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/sync/gradient_sync.hpp>
#include <muster/train/timeline.hpp>
#include <muster/train/tracker.hpp>

#include "../job.hpp"
#include "kernels.hpp"
#include "report.hpp"
#include "served.hpp"

namespace logistic {
namespace {

constexpr std::size_t weight = 0, bias = 1;  // the tensors of the arena

model_view model_of(muster::arena& arena) { return {arena.parameter(weight), arena.parameter(bias)[0]}; }

/// Sums over all ranks.
totals over_all_ranks(muster::group& world, const totals& mine) {
  std::array<double, 2> sums = {mine.loss, static_cast<double>(mine.correct)};
  muster::allreduce(world, std::span(sums), muster::sum);
  return {sums[0], static_cast<std::uint64_t>(sums[1])};
}

/// Loss and hits of the model on all samples of a set, of which this rank goes through its slice.
totals evaluate_together(muster::group& world, const labelled& set, const model_view& model) {
  const auto mine = muster::part_of(set.data.size(), {world.rank(), world.size()});
  return over_all_ranks(world, evaluate(set.data, mine.first, mine.last, set.targets, model));
}

/// SGD with the example's own numbers, or what --optimizer names.
muster::any_optimizer chosen_optimizer(muster::arena& arena, const muster::settings& settings, const options& chosen) {
  if (settings.is_default(muster::setting::optimizer))
    return muster::any_optimizer(muster::sgd(arena, {.momentum = chosen.momentum, .decay = chosen.l2}));
  if (chosen.momentum != 0.0f || chosen.l2 != 0.0f) {
    throw muster::configuration_error("--momentum and --l2 cannot be used with " +
                                      settings.origin(muster::setting::optimizer) +
                                      " (they are of the SGD that it replaces); write such as --optimizer "
                                      "momentum:0.9,decay=1e-6");
  }
  return muster::make_optimizer(arena, settings);
}

muster::loader batches_of(const labelled& samples, const options& chosen) {
  const auto order = samples.data | muster::shuffle(chosen.seed);
  if (chosen.batch_per_rank != 0) return order | muster::batch(chosen.batch_per_rank, {.per_rank = true});
  return order | muster::batch(chosen.batch);
}

class run {
 public:
  run(muster::context& context, muster::group& world, const problem& data, const options& chosen)
      : timeline_(context),
        data_(data),
        chosen_(chosen),
        arena_(context, {{"weight", {data.features}}, {"bias", {}}}),
        sync_(arena_, {.codec = muster::compress(context.configuration()), .mode = muster::sync_mode_of(context)}),
        optimizer_(chosen_optimizer(arena_, context.configuration(), chosen)),
        schedule_(muster::parse_schedule(chosen.schedule)),
        loader_(batches_of(data.train, chosen)),
        tracker_(world, {.goal = chosen.goal}),
        state_{arena_, optimizer_, tracker_, loader_.cursor()},
        session_(examples::open_session(
            context, world,
            [&data, &chosen](muster::group& ranks, bool) { require_same_everywhere(ranks, data, chosen); })),
        speaks_first_(world.rank() == 0 && context.launcher().rank == 0),
        ranks_(examples::ranks_of(context)),
        started_as_(examples::describe_ranks(context, world)),
        progress_(speaks_first_),
        compress_(context.configuration().value(muster::setting::compress)) {}

  void train() {
    if (speaks_first_) print_header(data_, chosen_, started_as_);
    while (train_epoch()) {
      progress_.clear();
      const bool done = session_.evaluate(state_, [&](muster::step& step) { end_epoch(step.group()); });
      if (done && speaks()) print_epoch(tracker_);
    }
    // What the training minimises, now that it stands still: the mean log-loss and the penalty.
    double loss = 0;
    const bool done = session_.evaluate(state_, [&](muster::step& step) {
      loss = evaluate_together(step.group(), data_.train, model_of(arena_)).loss;
    });
    double squares = 0;
    for (const float value : arena_.parameters()) squares += double{value} * double{value};
    objective_ = loss / static_cast<double>(data_.train.data.size()) + 0.5 * double{chosen_.l2} * squares;
    if (done && speaks()) print_results(tracker_, chosen_, objective_);
  }

  void write_report() {
    session_.evaluate(state_, [&](muster::step& step) { timeline_.write(step.group()); });
    if (chosen_.json.empty() || !speaks()) return;
    char objective[32];
    std::snprintf(objective, sizeof objective, "%.9g", objective_);
    tracker_.annotate("bytes sent", std::to_string(bytes_sent_ + sync_.bytes_sent()));
    tracker_.annotate("compress", compress_);
    tracker_.annotate("mode", muster::to_string(sync_.options().mode));
    tracker_.annotate("objective", objective);
    tracker_.annotate("options", describe(chosen_));
    tracker_.annotate("test", data_.test.data.name());
    tracker_.annotate("train", data_.train.data.name());
    tracker_.write(chosen_.json);
  }

 private:
  /// False when there was no epoch left to do.
  bool train_epoch() {
    auto batches = tracker_.batches();
    seen_ = {};
    samples_seen_ = 0;
    return session_.run(state_, [&](muster::step& step) { train_step(step); }, {.epochs = chosen_.epochs});
  }

  /// Collective: what the epoch came to.
  void end_epoch(muster::group& ranks) {
    sync_.average(ranks);  // where ranks have weights of their own, one model is evaluated
    const totals seen = over_all_ranks(ranks, seen_);
    const double samples = muster::allreduce(ranks, samples_seen_, muster::sum);  // fewer where a rank took its with it
    totals found;
    {
      auto phase = tracker_.phase(muster::phase::metrics);
      found = evaluate_together(ranks, data_.test, model_of(arena_));
    }
    const double test_size = static_cast<double>(data_.test.data.size());
    const muster::epoch_metrics metrics{.train_loss = seen.loss / std::max(1.0, samples),
                                        .val_loss = found.loss / test_size,
                                        .val_accuracy = static_cast<double>(found.correct) / test_size};
    require_finite(metrics.train_loss + metrics.val_loss, loader_.epoch(), chosen_);
    tracker_.end_epoch(ranks, metrics);
  }

  void train_step(muster::step& step) {
    const auto batch = loader_.next(step.slice());
    bytes_sent_ += sync_.bytes_sent();  // of the step before, with the weights that the session exchanged
    auto backward = sync_.begin(step.group());
    backward.add_samples(batch.samples.size());
    backward.divided_by(static_cast<double>(batch.global_size));  // the kernel does, where it costs nothing
    totals mine;
    {
      auto phase = tracker_.phase(muster::phase::backward);  // forward and loss are part of the same kernel
      backward.clear();
      mine = add_gradient(data_.train.data, batch.samples, data_.train.targets, model_of(arena_),
                          1.0f / static_cast<float>(batch.global_size),
                          {backward.gradient(weight), backward.gradient(bias).data()});
      backward.ready(bias);
      backward.ready(weight);
    }
    backward.wait();
    optimizer_.apply(schedule_(step) * (chosen_.batch_per_rank != 0 ? examples::growth(step, ranks_) : 1.0));
    seen_ += mine;  // now that the step can fail no more
    samples_seen_ += static_cast<double>(batch.samples.size());
    tracker_.add_samples(batch.samples.size());
    if (progress_.active()) show_progress();
  }

  void show_progress() {
    char line[96];
    std::snprintf(line, sizeof line, "epoch %llu of %llu, step %llu of %llu",
                  static_cast<unsigned long long>(loader_.epoch() + 1), static_cast<unsigned long long>(chosen_.epochs),
                  static_cast<unsigned long long>(loader_.step()),
                  static_cast<unsigned long long>(loader_.steps_per_epoch()));
    progress_.update(line);
  }

  /// Whether this rank is the one that tells people.
  [[nodiscard]] bool speaks() { return session_.group().rank() == 0; }

  muster::timeline timeline_;  // before the tracker, whose phases it draws
  const problem& data_;
  const options& chosen_;
  muster::arena arena_;
  muster::gradient_sync sync_;
  muster::any_optimizer optimizer_;
  muster::schedule schedule_;
  muster::loader loader_;
  muster::tracker tracker_;
  muster::state state_;
  muster::session session_;
  bool speaks_first_;  // before there is a group
  int ranks_;          // to begin with
  std::string started_as_;
  muster::progress_line progress_;
  std::string compress_;
  totals seen_;                   // of this rank's samples in the epoch
  double samples_seen_ = 0;       // so many
  std::uint64_t bytes_sent_ = 0;  // of gradients or weights by this rank
  double objective_ = 0;
};

}  // namespace

void train(muster::context& context, muster::group& world, const problem& data, const options& chosen) {
  if (muster::sync_mode_of(context).what == muster::sync_mode::kind::parameter_server) {
    require_same_everywhere(world, data, chosen);
    return train_served(context, world, data, chosen);
  }
  run job(context, world, data, chosen);
  job.train();
  job.write_report();
}

}  // namespace logistic
