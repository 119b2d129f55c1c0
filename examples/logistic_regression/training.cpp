#include "training.hpp"

#include <array>
#include <cstdio>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/ps/settings.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/settings.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/timeline.hpp>
#include <muster/train/training.hpp>

#include "../job.hpp"
#include "kernels.hpp"
#include "report.hpp"
#include "served.hpp"

namespace logistic {
namespace {

constexpr std::size_t weight = 0, bias = 1;  // the tensors of the arena

model_view model_of(muster::arena& arena) { return {arena.parameter(weight), arena.parameter(bias)[0]}; }

/// Loss and hits of the model on all samples of a set, of which each rank goes through its slice.
totals evaluate_together(muster::group& ranks, const labelled& set, const model_view& model) {
  const auto part = muster::part_of(set.data.size(), {ranks.rank(), ranks.size()});
  const auto mine = evaluate(set.data, part.first, part.last, set.targets, model);
  std::array<double, 2> sums = {mine.loss, static_cast<double>(mine.correct)};
  muster::allreduce(ranks, std::span(sums), muster::sum);
  return {sums[0], static_cast<std::uint64_t>(sums[1])};
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
        optimizer_(chosen_optimizer(arena_, context.configuration(), chosen)),
        schedule_(muster::parse_schedule(chosen.schedule)),
        loader_(batches_of(data.train, chosen)),
        tracker_(world, {.goal = chosen.goal}),
        training_(context, arena_, optimizer_, loader_, tracker_),
        speaks_first_(world.rank() == 0 && context.launcher().rank == 0),
        ranks_(examples::ranks_of(context)),
        started_as_(examples::describe_ranks(context, world)),
        settings_(context.configuration()) {}

  void train() {
    if (speaks_first_) print_header(data_, chosen_, started_as_);
    training_.run({.epochs = chosen_.epochs,
                   .max_seconds = chosen_.max_train_seconds,
                   .each_epoch = [this](muster::training_step& step) { validate(step); },
                   .each_group = [this](muster::group& ranks, bool) { require_same_everywhere(ranks, data_, chosen_); },
                   .print = [this](const auto&) { print_epoch(tracker_); }},
                  [this](muster::training_step& step) { train_step(step); });
    // What the training minimises, now that it stands still: the mean log-loss and the penalty.
    double loss = 0;
    const bool done = training_.evaluate(
        [&](muster::step& step) { loss = evaluate_together(step.group(), data_.train, model_of(arena_)).loss; });
    double squares = 0;
    for (const float value : arena_.parameters()) squares += double{value} * double{value};
    objective_ = loss / static_cast<double>(data_.train.data.size()) + 0.5 * double{chosen_.l2} * squares;
    if (done && speaks()) print_results(tracker_, chosen_, objective_);
  }

  void write_report() {
    training_.evaluate([&](muster::step& step) { timeline_.write(step.group()); });
    if (chosen_.json.empty() || !speaks()) return;
    char objective[32];
    std::snprintf(objective, sizeof objective, "%.9g", objective_);
    tracker_.annotate("bytes sent", std::to_string(bytes_sent_ + training_.sync().bytes_sent()));
    tracker_.annotate("objective", objective);
    tracker_.annotate("options", describe(chosen_));
    annotate_resolved(tracker_, settings_, chosen_);
    tracker_.annotate("test", data_.test.data.name());
    tracker_.annotate("train", data_.train.data.name());
    tracker_.write(chosen_.json);
  }

 private:
  void train_step(muster::training_step& step) {
    const auto batch = step.next(loader_);
    bytes_sent_ += training_.sync().bytes_sent();  // of the step before, with the weights that the session exchanged
    totals mine;
    step.backward(batch, [&](const auto&, auto& backward) {
      backward.divided_by(static_cast<double>(batch.global_size));  // the kernel does, where it costs nothing
      auto phase = tracker_.phase(muster::phase::backward);         // forward and loss are part of the same kernel
      backward.clear();
      mine = add_gradient(data_.train.data, batch.samples, data_.train.targets, model_of(arena_),
                          1.0f / static_cast<float>(batch.global_size),
                          {backward.gradient(weight), backward.gradient(bias).data()});
      backward.ready(bias);
      backward.ready(weight);
    });
    step.update(optimizer_, schedule_(step) * (chosen_.batch_per_rank != 0 ? examples::growth(step, ranks_) : 1.0));
    step.report_sum("loss", mine.loss, static_cast<double>(batch.samples.size()));
    step.report_sum("train_accuracy", static_cast<double>(mine.correct), static_cast<double>(batch.samples.size()));
  }

  void validate(muster::training_step& step) {
    const auto found = evaluate_together(step.group(), data_.test, model_of(arena_));
    if (step.group().rank() != 0) return;
    step.report_sum("val_loss", found.loss, static_cast<double>(data_.test.data.size()));
    step.report_sum("val_accuracy", static_cast<double>(found.correct), static_cast<double>(data_.test.data.size()));
  }

  /// Whether this rank is the one that tells people.
  [[nodiscard]] bool speaks() { return training_.session().group().rank() == 0; }

  muster::timeline timeline_;  // before the tracker, whose phases it draws
  const problem& data_;
  const options& chosen_;
  muster::arena arena_;
  muster::any_optimizer optimizer_;
  muster::schedule schedule_;
  muster::loader loader_;
  muster::tracker tracker_;
  muster::training training_;
  bool speaks_first_;  // before there is a group
  int ranks_;          // to begin with
  std::string started_as_;
  const muster::settings& settings_;
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
