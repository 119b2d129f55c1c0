#include "training.hpp"

#include <array>
#include <cstdio>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/progress.hpp>
#include <muster/data/loader.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/compress.hpp>
#include <muster/train/gradient_sync.hpp>
#include <muster/train/optimizer.hpp>
#include <muster/train/schedule.hpp>
#include <muster/train/sgd.hpp>
#include <muster/train/timeline.hpp>
#include <muster/train/tracker.hpp>

#include "kernels.hpp"
#include "pace.hpp"
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

class run {
 public:
  run(muster::context& context, muster::group& world, const problem& data, const options& chosen)
      : timeline_(context),
        session_(muster::fixed_session(world)),
        world_(world),
        data_(data),
        chosen_(chosen),
        arena_(context, {{"weight", {data.features}}, {"bias", {}}}),
        sync_(arena_, {.codec = muster::compress(context.configuration()), .mode = muster::sync_mode_of(context)}),
        optimizer_(chosen_optimizer(arena_, context.configuration(), chosen)),
        schedule_(muster::parse_schedule(chosen.schedule)),
        loader_(data.train.data | muster::shuffle(chosen.seed) | muster::batch(chosen.batch)),
        tracker_(world, {.goal = chosen.goal}),
        state_{arena_, optimizer_, tracker_, loader_.cursor()},
        progress_(world.rank() == 0),
        compress_(context.configuration().value(muster::setting::compress)) {}

  void train() {
    if (world_.rank() == 0)
      print_header(data_, chosen_, count_of(world_.size(), "rank") + " (" + std::string(world_.abilities().name) + ")");
    for (;;) {
      totals mine;
      if (!train_epoch(mine)) break;
      sync_.average(world_);  // where ranks have weights of their own, one model is evaluated
      const totals seen = over_all_ranks(world_, mine);
      progress_.clear();
      totals found;
      {
        auto phase = tracker_.phase(muster::phase::metrics);
        found = evaluate_together(world_, data_.test, model_of(arena_));
      }
      const double train_size = static_cast<double>(data_.train.data.size());
      const double test_size = static_cast<double>(data_.test.data.size());
      const muster::epoch_metrics metrics{.train_loss = seen.loss / train_size,
                                          .val_loss = found.loss / test_size,
                                          .val_accuracy = static_cast<double>(found.correct) / test_size};
      require_finite(metrics.train_loss + metrics.val_loss, loader_.epoch(), chosen_);
      tracker_.end_epoch(world_, metrics);
      if (world_.rank() == 0) print_epoch(tracker_);
    }
    // What the training minimises, now that it stands still: the mean log-loss and the penalty.
    const double loss = evaluate_together(world_, data_.train, model_of(arena_)).loss;
    double squares = 0;
    for (const float value : arena_.parameters()) squares += double{value} * double{value};
    objective_ = loss / static_cast<double>(data_.train.data.size()) + 0.5 * double{chosen_.l2} * squares;
    if (world_.rank() == 0) print_results(tracker_, chosen_, objective_);
  }

  void write_report() {
    timeline_.write(world_);
    if (chosen_.json.empty()) return;
    char objective[32];
    std::snprintf(objective, sizeof objective, "%.9g", objective_);
    tracker_.annotate("bytes sent", std::to_string(bytes_sent_));
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
  bool train_epoch(totals& seen) {
    auto batches = tracker_.batches();
    return session_.run(state_, [&](muster::step& step) { train_step(step, seen); }, {.epochs = chosen_.epochs});
  }

  void train_step(muster::step& step, totals& seen) {
    const auto batch = next_batch(step);
    pace_.begin();
    auto backward = sync_.begin(step.group());
    backward.add_samples(batch.samples.size());
    backward.divided_by(static_cast<double>(batch.global_size));  // the kernel does, where it costs nothing
    {
      auto phase = tracker_.phase(muster::phase::backward);  // forward and loss are part of the same kernel
      backward.clear();
      seen += add_gradient(data_.train.data, batch.samples, data_.train.targets, model_of(arena_),
                           1.0f / static_cast<float>(batch.global_size),
                           {backward.gradient(weight), backward.gradient(bias).data()});
      backward.ready(bias);
      backward.ready(weight);
    }
    pace_.hold(world_.rank());
    {
      auto phase = tracker_.phase(muster::phase::aggregate);
      backward.wait();
    }
    {
      auto phase = tracker_.phase(muster::phase::optimizer_step);
      optimizer_.apply(schedule_(step));
    }
    sync_.end(step.group());
    bytes_sent_ += sync_.bytes_sent();
    tracker_.add_samples(batch.samples.size());
    if (progress_.active()) show_progress();
  }

  muster::minibatch next_batch(const muster::step& step) {
    auto phase = tracker_.phase(muster::phase::batch_load);
    return loader_.next(step.slice());
  }

  void show_progress() {
    char line[96];
    std::snprintf(line, sizeof line, "epoch %llu of %llu, step %llu of %llu",
                  static_cast<unsigned long long>(loader_.epoch() + 1), static_cast<unsigned long long>(chosen_.epochs),
                  static_cast<unsigned long long>(loader_.step()),
                  static_cast<unsigned long long>(loader_.steps_per_epoch()));
    progress_.update(line);
  }

  muster::timeline timeline_;  // before the tracker, whose phases it draws
  muster::session session_;
  muster::group& world_;
  const problem& data_;
  const options& chosen_;
  muster::arena arena_;
  muster::gradient_sync sync_;
  muster::any_optimizer optimizer_;
  muster::schedule schedule_;
  muster::loader<> loader_;
  muster::tracker tracker_;
  muster::state state_;
  muster::progress_line progress_;
  pace pace_{chosen_};
  std::string compress_;
  std::uint64_t bytes_sent_ = 0;  // of gradients or weights by this rank
  double objective_ = 0;
};

}  // namespace

void train(muster::context& context, muster::group& world, const problem& data, const options& chosen) {
  require_same_everywhere(world, data, chosen);
  if (muster::sync_mode_of(context).what == muster::sync_mode::kind::parameter_server)
    return train_served(context, world, data, chosen);
  run job(context, world, data, chosen);
  job.train();
  job.write_report();
}

}  // namespace logistic
