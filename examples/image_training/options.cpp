#include "options.hpp"

#include <algorithm>
#include <sstream>

#include <muster/train/optimizers/schedule.hpp>
#include <muster/train/train_settings.hpp>

#include "../command_line.hpp"

namespace images {
namespace {

/// A preset for the editions of MLBench's task 1a. The rate of 2019 is for each sample of a step, so that it grows with
/// the number of ranks.
struct preset {
  const char* name;
  std::uint64_t epochs;
  std::uint64_t batch_per_rank;
  const char* help;
};
constexpr preset presets[] = {
    {"mlbench-1a-2019", 164, 32, "batch 32 a rank, 0.1 / 256 a sample, 5 epochs of warm-up, / 10 at 82 and 109"},
    {"mlbench-1a-code", 164, 128, "batch 128 a rank, 0.1, / 10 at 82 and 109"},
    {"mlbench-1a-v3", 164, 128, "batch 128 a rank, 0.02, divided by 2 when the accuracy no longer rises"}};

std::string schedule_of(const preset& chosen, int ranks) {
  std::ostringstream text;
  if (chosen.name == std::string_view("mlbench-1a-2019")) {
    text << "step:" << 0.1 * 32 / 256 << ",epochs=82+109,factor=0.1,warmup=5,scale=" << ranks;
  } else if (chosen.name == std::string_view("mlbench-1a-code")) {
    text << "step:0.1,epochs=82+109,factor=0.1";
  } else {
    text << "plateau:0.02,factor=0.5,patience=3,better=higher";
  }
  return text.str();
}

/// The parsed command line, in which some options may be unset.
struct command_line {
  options chosen;
  std::string goal, preset_name;
  std::string augment = "on";
  std::function<std::string()> model;
  CLI::App app;

  explicit command_line(const program& which) : app(which.about, which.name) {
    auto& o = chosen;
    o = which.defaults;
    o.program = which.name;
    augment = o.augment ? "on" : "off";
    app.set_help_flag();  // run_main handles --help.
    model = which.add_flags(app);
    app.add_option("--data", o.data,
                   "cifar10:FOLDER, mnist:FOLDER, cifar-like:N (generated), "
                   "idx:IMAGES,LABELS?test-images=A&test-labels=B (or a tenth is held out), or "
                   "another source of images, such as images:FOLDER (of JPEG files) or records:FOLDER, with --test or "
                   "--holdout")
        ->type_name("SPEC")
        ->capture_default_str();
    app.add_option("--test", o.test, "validation images, in place of the test images of --data")->type_name("SPEC");
    muster::add_number(app, "--limit", o.limit, examples::some_samples,
                       "number of training images, from the first on [all]");
    examples::add_holdout_flag(app, o.holdout);
    muster::add_number(app, "--image-size", o.side, {8, 4096}, "pixels of a side that JPEG files are resized to");
    app.add_flag("--grey", o.grey, "make JPEG files grey, for a model of one channel");
    app.add_option("--augment", augment, "crop and flip training images that have colours: on or off")
        ->check(CLI::IsMember({"on", "off"}))
        ->capture_default_str();
    muster::add_number(app, "--epochs", o.epochs, examples::some_epochs, "passes over the training images");
    muster::add_number(app, "--steps", o.steps, examples::some_steps,
                       "number of steps after which the training ends [no limit]");
    examples::add_time_flag(app, o.max_train_seconds);
    auto* batch = muster::add_number(app, "--batch", o.batch, examples::some_samples, "images per step over all ranks");
    if (o.batch_per_rank != 0) batch->default_str("");
    muster::add_number(
        app, "--batch-per-rank", o.batch_per_rank, examples::some_samples,
        "images per step on each rank, in place of --batch; when ranks join or leave, the learning rate is "
        "scaled with their number")
        ->excludes(batch);
    app.add_option("--schedule", o.schedule, "learning rate: see muster's schedules (docs/optimizers.md)")
        ->type_name("SPEC")
        ->capture_default_str();
    app.add_option("--goal", goal,
                   "report when it is reached: accuracy=0.80, val_loss=0.6, train_loss=0.5 or train_accuracy=0.9")
        ->type_name("METRIC=VALUE");
    app.add_flag("--stop-at-goal", o.stop_at_goal, "end with the epoch that reaches the goal");
    muster::add_number(app, "--seed", o.seed, examples::any_seed,
                       "seed of the order of images, augmentation, dropout and initial parameters");
    app.add_flag("--sync-batch-norm", o.share_statistics, "normalise batches by the statistics over all ranks' images");
    app.add_option("--backend", o.execution.backend, "implementation of convolution: winograd, direct or eigen")
        ->capture_default_str();
    app.add_option("--kernels", o.execution.kernels, "inner loops of direct: avx512, avx2, portable [the best]")
        ->type_name("NAME");
    app.add_option("--device", o.device, "processor: cpu, or cuda for an NVIDIA device in each rank")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->capture_default_str();
    app.add_option("--precision", o.precision, "precision of convolutions on a device: float32, tf32 or bfloat16")
        ->check(CLI::IsMember({"float32", "tf32", "bfloat16"}))
        ->capture_default_str();
    examples::add_stage_flags(app, o.stages);
    examples::add_checkpoint_flags(app, o.checkpoint, o.resume);
    app.add_option("--init", o.init,
                   "begin with the parameters of a model that --save wrote, or of a .safetensors file")
        ->type_name("FILE");
    app.add_option("--save", o.save, "write the trained model to this file, for predict; also as .safetensors")
        ->type_name("FILE");
    app.add_flag("--save-best", o.save_best, "--save the epoch with the best validation accuracy, not the last epoch");
    app.add_option("--json", o.json, "write the tracker's report to this file (docs/tracker.md)")->type_name("FILE");
    if (which.mlbench) {
      std::string help = "an MLBench task as published; other flags override its settings:";
      for (const auto& each : presets) help += std::string(" ") + each.name + " (" + each.help + ")";
      app.add_option("--preset", preset_name, help)->type_name("NAME");
    }
  }
};

void apply_preset(command_line& line, int ranks) {
  if (line.preset_name.empty()) return;
  auto& o = line.chosen;
  for (const auto& each : presets) {
    if (line.preset_name != each.name) continue;
    if (line.app.count("--batch") == 0 && o.batch_per_rank == 0) o.batch_per_rank = each.batch_per_rank;
    if (line.app.count("--epochs") == 0) o.epochs = each.epochs;
    if (line.app.count("--schedule") == 0) o.schedule = schedule_of(each, ranks);
    if (line.goal.empty()) line.goal = "accuracy=0.80";
    return;
  }
  examples::refuse("unknown preset '" + line.preset_name + "' (known: mlbench-1a-2019, mlbench-1a-code, mlbench-1a-v3)",
                   "use a known preset, or no --preset");
}

}  // namespace

options parse_options(int argc, char** argv, int ranks, const muster::settings& settings, const program& which) {
  command_line line(which);
  examples::parse(line.app, argc, argv);
  auto& o = line.chosen;
  apply_preset(line, ranks);
  o.model = line.model();
  o.augment = line.augment == "on";
  o.execution.threads = std::max(o.stages.threads, 1);
  if (line.app.count("--batch") > 0) o.batch_per_rank = 0;  // This is the program's own default.
  if (o.batch_per_rank != 0) o.batch = o.batch_per_rank * static_cast<std::uint64_t>(ranks);
  examples::require_folder_to_resume(o.checkpoint, o.resume);
  if (!settings.is_default(muster::setting::optimizer)) o.optimizer = settings.value(muster::setting::optimizer);
  (void)muster::parse_schedule(o.schedule);
  if (!line.goal.empty()) o.goal = muster::parse_goal(line.goal);
  for (const char* flag : {"--backend", "--kernels", "--precision"}) {
    const bool of_device = flag == std::string_view("--precision");
    if (line.app.count(flag) > 0 && of_device == (o.device == "cpu"))
      examples::refuse(std::string(flag) + " cannot be used with --device " + o.device + " (it is for the " +
                           (of_device ? "device" : "processor") + ")",
                       "leave it out");
  }
  if (o.share_statistics && o.device != "cpu")
    examples::refuse("--sync-batch-norm cannot be used with --device cuda (each device has statistics of its own)",
                     "leave it out");
  if (o.stop_at_goal && o.goal.metric.empty())
    examples::refuse("--stop-at-goal has no goal to stop at", "give --goal too");
  if (o.save_best && o.save.empty()) examples::refuse("--save-best has no file to save to", "give --save FILE too");
  return o;
}

std::string help_text(const program& which) {
  const command_line line(which);
  return line.app.help() + "\n--optimizer is " + line.chosen.optimizer + " here.\n";
}

muster::batch batches_of(const options& chosen) {
  if (chosen.batch_per_rank != 0) return muster::batch(chosen.batch_per_rank, {.per_rank = true});
  return muster::batch(chosen.batch);
}

std::string describe(const options& chosen) {
  std::ostringstream text;
  text << chosen.model << ", epochs " << chosen.epochs << ", batch " << chosen.batch << ", schedule " << chosen.schedule
       << ", optimizer " << chosen.optimizer << ", seed " << chosen.seed << ", augmentation "
       << (chosen.augment ? "on" : "off") << (chosen.grey ? ", grey" : "") << ", batch normalisation by "
       << (chosen.share_statistics ? "all ranks" : "each rank") << ", "
       << (chosen.device == "cpu" ? chosen.execution.backend : chosen.device + " (" + chosen.precision + ")");
  if (!chosen.init.empty()) text << ", initial parameters of " << chosen.init;
  if (chosen.holdout > 0) text << ", held out " << chosen.holdout;
  return text.str();
}

}  // namespace images
