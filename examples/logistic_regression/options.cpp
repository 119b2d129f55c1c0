#include "options.hpp"

#include <array>
#include <sstream>

#include <muster/core/env.hpp>
#include <muster/train/optimizers/schedule.hpp>

#include "../pipeline.hpp"

namespace logistic {
namespace {

// Returns alpha of alpha / sqrt(t) in MLBench's task 2a, by the number of ranks.
double mlbench_alpha(int ranks) {
  constexpr std::array<std::pair<int, double>, 4> table = {{{1, 200}, {2, 400}, {4, 600}, {8, 700}}};
  for (const auto& [most, alpha] : table) {
    if (ranks <= most) return alpha;
  }
  return 800;
}

constexpr const char* default_file_schedule = "inverse-sqrt:2";
constexpr const char* default_synthetic_schedule = "inverse-sqrt:200";

/// The parsed command line, in which some options may be unset.
struct command_line {
  options chosen;
  std::string goal;
  std::string preset;
  CLI::App app{"L2-regularised logistic regression by synchronous SGD: MLBench's task 2a.", "logistic_regression"};

  command_line() {
    auto& o = chosen;
    app.set_help_flag();  // run_main handles --help.
    auto* train = app.add_option("--train", o.train, "training set: libsvm:PATH, or another source of numbers")
                      ->type_name("SPEC");
    auto* test = app.add_option("--test", o.test, "test set with the same classes")->type_name("SPEC");
    app.add_option(
           "--synthetic", o.synthetic,
           "instead of files: dense rows of 2,000 features that stand in for the epsilon data set, or rows of 30 "
           "features out of ten million (clicks), and a quarter or a fifth as many to test on")
        ->type_name("epsilon[:ROWS]|clicks[:ROWS]")
        ->excludes(train)
        ->excludes(test);
    test->needs(train);
    examples::add_holdout_flag(app, o.holdout);
    muster::add_number(app, "--epochs", o.epochs, examples::some_epochs, "passes over the training set");
    examples::add_time_flag(app, o.max_train_seconds);
    auto* batch =
        muster::add_number(app, "--batch", o.batch, examples::some_samples, "samples per step over all ranks");
    muster::add_number(
        app, "--batch-per-rank", o.batch_per_rank, examples::some_samples,
        "samples per step on each rank, in place of --batch; when ranks join or leave, the learning rate is "
        "scaled with their number")
        ->excludes(batch);
    app.add_option("--schedule", o.schedule,
                   std::string("learning rate: constant:RATE, inverse-sqrt:ALPHA, step:RATE,epochs=E+E,factor=F, "
                               "cosine:RATE,epochs=E and others (docs/optimizers.md) [") +
                       default_file_schedule + ", or " + default_synthetic_schedule + " with --synthetic]")
        ->type_name("SPEC");
    app.add_option("--goal", goal,
                   "report when it is reached: accuracy=0.85, val_loss=0.33, train_loss=0.33 or train_accuracy=0.85")
        ->type_name("METRIC=VALUE");
    muster::add_number(app, "--seed", o.seed, examples::any_seed, "seed of the order of samples and of synthetic data");
    muster::add_number(app, "--l2", o.l2, {0, 1000}, "the loss has l2 / 2 * |weights and bias|^2 added");
    muster::add_number(app, "--momentum", o.momentum, {0, 1}, "of SGD");
    muster::add_number(app, "--threads", o.threads, {1, 1024},
                       "of a rank, which split its arithmetic; the same bits for any");
    examples::add_bad_record_flag(app, o.bad);
    examples::add_checkpoint_flags(app, o.checkpoint, o.resume);
    app.add_option("--init", o.init,
                   "begin with the parameters of a model that --save wrote, or of a .safetensors file")
        ->type_name("FILE");
    app.add_option("--save", o.save, "write the trained model to this file, for serve; also as .safetensors")
        ->type_name("FILE");
    app.add_option("--json", o.json, "write the tracker's report to this file (docs/tracker.md)")->type_name("FILE");
    app.add_option(
           "--preset", preset,
           "mlbench-2a: --batch-per-rank 100 --l2 2.5e-6 --schedule inverse-sqrt:A with A = 200, 400, 600, 700, "
           "800 for 1, 2, 4, 8, more ranks; flags beside it win")
        ->type_name("NAME");
  }
};

void apply_preset(command_line& line, int ranks) {
  if (line.preset.empty()) return;
  if (line.preset != "mlbench-2a") {
    const auto meant = muster::closest(line.preset, {"mlbench-2a"});
    examples::refuse("unknown preset '" + line.preset + "' (known: mlbench-2a)",
                     meant ? "did you mean " + *meant + "?" : "use that or none");
  }
  auto& o = line.chosen;
  if (line.app.count("--batch") == 0 && o.batch_per_rank == 0) o.batch_per_rank = 100;
  if (line.app.count("--l2") == 0) o.l2 = 2.5e-6f;
  if (o.schedule.empty()) {
    std::ostringstream text;
    text << "inverse-sqrt:" << mlbench_alpha(ranks);
    o.schedule = text.str();
  }
}

}  // namespace

options parse_options(int argc, char** argv, int ranks) {
  command_line line;
  examples::parse(line.app, argc, argv);
  auto& o = line.chosen;
  if (o.train.empty() && o.synthetic.empty()) {
    examples::refuse("nothing to train on (neither --train nor --synthetic is given)",
                     "give --train libsvm:PATH --test libsvm:PATH or --synthetic epsilon");
  }
  if (!o.train.empty() && o.test.empty() && o.holdout == 0)
    examples::refuse("nothing to test on (neither --test nor --holdout is given)", "give --test or --holdout");
  apply_preset(line, ranks);
  examples::require_folder_to_resume(o.checkpoint, o.resume);
  if (o.batch_per_rank != 0) o.batch = o.batch_per_rank * static_cast<std::uint64_t>(ranks);
  if (o.schedule.empty()) o.schedule = o.synthetic.empty() ? default_file_schedule : default_synthetic_schedule;
  (void)muster::parse_schedule(o.schedule);
  if (!line.goal.empty()) o.goal = muster::parse_goal(line.goal);
  return o;
}

std::string help_text() {
  const command_line line;
  return line.app.help();
}

std::string optimizer_of(const options& chosen) {
  std::ostringstream text;
  if (chosen.momentum == 0.0f)
    text << "sgd";
  else
    text << "momentum:" << chosen.momentum;
  if (chosen.l2 != 0.0f) text << ",decay=" << chosen.l2;
  return text.str();
}

std::string describe(const options& chosen) {
  std::ostringstream text;
  text.precision(9);
  text << "epochs " << chosen.epochs << ", batch " << chosen.batch << ", schedule " << chosen.schedule << ", seed "
       << chosen.seed << ", l2 " << chosen.l2 << ", momentum " << chosen.momentum;
  if (!chosen.init.empty()) text << ", initial parameters of " << chosen.init;
  if (chosen.holdout > 0) text << ", held out " << chosen.holdout;
  return text.str();
}

}  // namespace logistic
