#include "training.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <optional>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/timeline.hpp>
#include <muster/train/train_settings.hpp>
#include <muster/train/training.hpp>

#include "../job.hpp"
#include "../model_file.hpp"
#include "kernels.hpp"
#include "report.hpp"

namespace logistic {
namespace {

constexpr std::size_t weight = 0, bias = 1;  // Tensors of the arena.
constexpr const char* model_name = "logistic_regression";

model_view model_of(muster::arena& arena) { return {arena.parameter(weight), arena.parameter(bias)[0]}; }

/// Returns the loss and the number of correct samples of the model over a set. Each rank evaluates its slice.
totals evaluate_together(muster::group& ranks, const labelled& set, const model_view& model,
                         const examples::rank_tasks& tasks) {
  const auto part = muster::part_of(set.data.size(), {ranks.rank(), ranks.size()});
  const auto mine = evaluate(set.data, part.first, part.last, set.targets, model, tasks);
  std::array<double, 2> sums = {mine.loss, static_cast<double>(mine.correct)};
  muster::allreduce(ranks, std::span(sums), muster::sum);
  return {sums[0], static_cast<std::uint64_t>(sums[1])};
}

/// Returns the optimizer of --optimizer, or by default SGD with the example's own settings.
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

/// Returns the options of the exchange. On servers, sparse samples pull the weights of their features only.
muster::sync_options sync_of(const muster::context& context, const problem& data) {
  auto options = muster::training::sync_of_job(context);
  options.sparse = data.train.data.is_sparse();
  return options;
}

class run {
 public:
  run(muster::context& context, muster::group& world, const problem& data, const options& chosen)
      : context_(context),
        timeline_(context),
        data_(data),
        chosen_(chosen),
        tasks_(chosen.threads),
        sparse_on_servers_(examples::on_servers(context) && data.train.data.is_sparse()),
        arena_(context, {{"weight", {data.features}}, {"bias", {}}}),
        optimizer_(chosen_optimizer(arena_, context.configuration(), chosen)),
        schedule_(muster::parse_schedule(chosen.schedule)),
        loader_(batches_of(data.train, chosen)),
        tracker_(world, {.goal = chosen.goal,
                         .metrics = context.configuration().value(muster::setting::metrics),
                         .tensorboard = context.configuration().value(muster::setting::tensorboard)}),
        training_(context, sync_of(context, data), arena_, optimizer_, loader_, tracker_),
        speaks_first_(world.rank() == 0 && context.launcher().rank == 0),
        started_as_(examples::describe_ranks(context, world)) {
    if (!chosen.init.empty()) examples::read_tensors(chosen.init, model_name, tensors());
  }

  void train() {
    if (speaks_first_) print_header(data_, chosen_, started_as_);
    training_.run({.epochs = chosen_.epochs,
                   .max_seconds = chosen_.max_train_seconds,
                   .checkpoint = chosen_.checkpoint,
                   .resume = chosen_.resume,
                   .each_epoch = [this](muster::training_step& step) { validate(step); },
                   .at_end = [this](muster::training_step& step) { finish(step); },
                   .each_group = [this](muster::group& ranks, bool) { require_same_everywhere(ranks, data_, chosen_); },
                   .print = [this](const auto&) { print_epoch(tracker_); }},
                  [this](muster::training_step& step) { train_step(step); });
    if (!training_.is_root()) return;
    print_results(tracker_, chosen_, objective_, final_accuracy_);
    if (chosen_.json.empty()) return;
    tracker_.annotate("bytes sent", std::to_string(training_.bytes_sent()));
    write_report(tracker_, context_, data_, chosen_, objective_, final_accuracy_);
  }

 private:
  void train_step(muster::training_step& step) {
    const auto batch = step.next(loader_);
    if (sparse_on_servers_) step.pull(elements_of(data_.train.data, batch.samples));
    totals mine;
    step.backward(batch, [&](const muster::minibatch& part, auto& backward) {
      backward.divided_by(static_cast<double>(batch.global_size));  // The kernel divides, at no cost.
      // Forward pass and loss are part of the same kernel.
      auto phase = tracker_.phase(muster::phase::backward);
      if (!sparse_on_servers_) backward.clear();
      mine += add_gradient(data_.train.data, part.samples, data_.train.targets, model_of(arena_),
                           1.0f / static_cast<float>(batch.global_size),
                           {backward.gradient(weight), backward.gradient(bias).data()}, tasks_);
      backward.ready(bias);
      backward.ready(weight);
    });
    step.update(optimizer_, schedule_(step) * (chosen_.batch_per_rank != 0 ? examples::growth(context_, step) : 1.0));
    step.report_sum("loss", mine.loss, static_cast<double>(batch.samples.size()));
    step.report_sum("train_accuracy", static_cast<double>(mine.correct), static_cast<double>(batch.samples.size()));
  }

  void validate(muster::training_step& step) {
    const auto found = evaluate_all(step, data_.test);
    if (step.group().rank() != 0) return;
    step.report_sum("val_loss", found.loss, static_cast<double>(data_.test.data.size()));
    step.report_sum("val_accuracy", static_cast<double>(found.correct), static_cast<double>(data_.test.data.size()));
  }

  /// Computes the objective of the training for the final parameters: the mean log-loss and the penalty.
  void finish(muster::training_step& step) {
    const double loss = evaluate_all(step, data_.train).loss;
    double squares = 0;
    if (chosen_.l2 != 0.0f) {
      for (const float value : arena_.parameters()) squares += double{value} * double{value};
    }
    objective_ = loss / static_cast<double>(data_.train.data.size()) + 0.5 * double{chosen_.l2} * squares;
    if (examples::on_servers(context_)) {
      final_accuracy_ =
          static_cast<double>(evaluate_all(step, data_.test).correct) / static_cast<double>(data_.test.data.size());
    }
    if (!chosen_.save.empty() && step.group().rank() == 0) save();
    timeline_.write(step.group());
  }

  totals evaluate_all(muster::training_step& step, const labelled& set) {
    if (sparse_on_servers_) {
      std::vector<muster::sample_id> all(set.data.size());
      std::iota(all.begin(), all.end(), muster::sample_id{0});
      step.pull(elements_of(set.data, all));
    }
    return evaluate_together(step.group(), set, model_of(arena_), tasks_);
  }

  /// Returns the arena's elements that these samples use, in ascending order. The bias is stored before the weights.
  std::vector<std::uint64_t> elements_of(const muster::dataset& set, std::span<const muster::sample_id> samples) const {
    std::vector<std::uint64_t> elements = {arena_.places()[bias].first};
    for (const auto sample : samples) {
      for (const auto feature : set.sparse(sample).indices) elements.push_back(arena_.places()[weight].first + feature);
    }
    std::sort(elements.begin(), elements.end());
    elements.erase(std::unique(elements.begin(), elements.end()), elements.end());
    return elements;
  }

  std::vector<examples::model_tensor> tensors() {
    return {{"weight", {data_.features}, arena_.parameter(weight)}, {"bias", {}, arena_.parameter(bias)}};
  }
  void save() {
    examples::write_model(chosen_.save, {{"model", model_name}, {"parameters", data_.features + 1}, {"statistics", 0}},
                          tensors());
  }

  muster::context& context_;
  muster::timeline timeline_;  // Declared before the tracker, whose phases the timeline records.
  const problem& data_;
  const options& chosen_;
  examples::rank_tasks tasks_;
  const bool sparse_on_servers_;
  muster::arena arena_;
  muster::any_optimizer optimizer_;
  muster::schedule schedule_;
  muster::loader loader_;
  muster::tracker tracker_;
  muster::training training_;
  const bool speaks_first_;  // True at rank 0 of the launch, which prints the header.
  const std::string started_as_;
  double objective_ = 0;
  std::optional<double> final_accuracy_;  // Differs from the last epoch of the first worker.
};

}  // namespace

void train(muster::context& context, muster::group& world, const problem& data, const options& chosen) {
  examples::refuse_on_servers(context, {{"--max-train-seconds", chosen.max_train_seconds > 0},
                                        {"--l2 on sparse data", chosen.l2 != 0.0f && data.train.data.is_sparse()}});
  run(context, world, data, chosen).train();
}

}  // namespace logistic
