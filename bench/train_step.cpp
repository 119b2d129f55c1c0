// A training step on one or several ranks, in the form of bench/peers/step_torch.py, which bench/compare_step.py runs
// beside this program: one line for each model, with the median of the steps' times at the slowest rank.
//
//   build/release/bench/train_step [--models resnet20,resnet56,vgg16,cnn] [--batch 32] [--steps 5]
//                                    [--threads 1] [--backend winograd] [--kernels avx2] [--cpu-time]
//   mpirun -n 2 build/release/bench/train_step ...     # --benchmark_format=json for programs
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/context.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/random.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/sync/gradient_sync.hpp>

#include "loss.hpp"
#include "models.hpp"
#include "processor.hpp"
#include "rows.hpp"

namespace {

struct options {
  std::string models = "resnet20";
  std::size_t batch = 32;
  std::size_t steps = 5;
  bool cpu_time = false;
  nn::execution execution;
};

std::unique_ptr<nn::network<float>> make(const std::string& model, const nn::execution& execution) {
  if (model == "vgg16") return nn::make_vgg16<float>(10, execution);
  if (model == "cnn") return nn::make_cnn<float>(nn::cnn_variant::plain, 10, {28, 28, 1}, execution);
  return nn::make_resnet<float>({.depth = std::stoi(model.substr(6))}, execution);
}

/// Returns the seconds on this thread's CPU clock, or of the wall clock.
double now_seconds(bool cpu_time) {
  timespec now{};
  clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void measure(muster::context& context, muster::group& world, const std::string& model, const options& chosen,
             bench::row_report& report) {
  const nn::flush_denormals flush;
  const auto net = make(model, chosen.execution);
  muster::arena arena(context, net->shapes());
  net->bind(arena);
  net->initialise(1);
  muster::gradient_sync sync(arena);
  muster::sgd optimizer(arena, {.momentum = 0.9f, .nesterov = true, .decay = 1e-4f});
  const std::size_t batch = chosen.batch;
  muster::random_stream random(1, static_cast<std::uint64_t>(world.rank()));
  std::vector<float> images(batch * net->input_shape().size()), labels(batch), slopes(batch * net->classes());
  std::vector<muster::sample_id> samples(batch);
  for (auto& value : images) value = static_cast<float>(random.normal());
  for (std::size_t i = 0; i < batch; ++i) {
    labels[i] = static_cast<float>(random.below(net->classes()));
    samples[i] = static_cast<muster::sample_id>(i);
  }
  const double global = static_cast<double>(batch) * world.size();
  std::vector<double> times;
  for (std::size_t step = 0; step < chosen.steps + 2; ++step) {  // Two steps warm up.
    muster::barrier(world);
    const double begin = now_seconds(chosen.cpu_time);
    auto backward = sync.begin(world);
    backward.clear();
    backward.add_samples(batch);
    backward.divided_by(global);
    const nn::pass now{
        .images = batch, .samples = samples, .ready = [&](std::size_t tensor) { backward.ready(tensor); }};
    const auto logits = net->forward(images, now);
    nn::softmax_cross_entropy<float>(logits, labels, net->classes(), 1 / global, slopes);
    net->backward(slopes, now);
    backward.wait();
    optimizer.apply(0.01);
    sync.commit();
    double spent = now_seconds(chosen.cpu_time) - begin;
    muster::allreduce(world, std::span(&spent, 1), muster::max);
    if (step >= 2) times.push_back(spent);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  const double step = times[times.size() / 2];
  report.print("muster %s %s batch %zu ranks %d %.1f images/s\n", model.c_str(), chosen.execution.backend.c_str(),
               batch, world.size(), global / step);
  report.add(model + "/" + std::to_string(batch), step, global / step);
}

options parse(int argc, char** argv) {
  options chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--cpu-time") {
      chosen.cpu_time = true;
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (flag == "--models") {
      chosen.models = value;
    } else if (flag == "--batch" && !value.empty()) {
      chosen.batch = std::stoul(value);
    } else if (flag == "--steps" && !value.empty()) {
      chosen.steps = std::max(1ul, std::stoul(value));
    } else if (flag == "--threads" && !value.empty()) {
      chosen.execution.threads = std::stoi(value);
    } else if (flag == "--backend") {
      chosen.execution.backend = value;
    } else if (flag == "--kernels") {
      chosen.execution.kernels = value;
    } else {
      throw muster::configuration_error("unknown argument '" + flag +
                                        "' (known: --models --batch --steps --threads --backend --kernels --cpu-time); "
                                        "see the comment on top of bench/train_step.cpp");
    }
  }
  return chosen;
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    const auto flags = bench::take_report_flags(argc, argv);
    auto chosen = parse(argc, argv);
    if (flags.quick) chosen.steps = 1;
    context.run([&](muster::group& world) {
      bench::row_report report(flags, world);
      std::istringstream models(chosen.models);
      for (std::string model; std::getline(models, model, ',');) measure(context, world, model, chosen, report);
      report.write();
    });
  });
}
