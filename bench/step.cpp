// A whole training step (forward, backward, update) per model and batch, on generated data, one thread.
//
//   build/release/bench/step [--benchmark_filter=resnet20.*] [--benchmark_min_time=1]
//
// The peer is bench/peers/step_torch.py; bench/compare_step.py runs both in turns.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <muster/comm/context.hpp>
#include <muster/core/random.hpp>
#include <muster/train/optimizers/optimizer.hpp>

#include "everywhere.hpp"
#include "loss.hpp"
#include "models.hpp"
#include "processor.hpp"

namespace {

using network = nn::network<float>;

std::unique_ptr<network> make(const std::string& model, const nn::execution& execution) {
  if (model == "vgg16") return nn::make_vgg16<float>(10, execution);
  if (model == "cnn") return nn::make_cnn<float>(nn::cnn_variant::plain, 10, {28, 28, 1}, execution);
  return nn::make_resnet<float>({.depth = std::stoi(model.substr(6))}, execution);
}

void train_step(benchmark::State& state, muster::context& context, const std::string& model, std::size_t batch,
                const nn::execution& execution) {
  const nn::flush_denormals flush;
  const auto net = make(model, execution);
  muster::arena arena(context, net->shapes());
  net->bind(arena);
  net->initialise(1);
  muster::sgd optimizer(arena, {.momentum = 0.9f, .nesterov = true, .decay = 1e-4f});
  muster::random_stream random(1);
  std::vector<float> images(batch * net->input_shape().size()), labels(batch), slopes(batch * 10);
  std::vector<muster::sample_id> samples(batch);
  for (auto& value : images) value = static_cast<float>(random.normal());
  for (std::size_t i = 0; i < batch; ++i) {
    labels[i] = static_cast<float>(random.below(10));
    samples[i] = static_cast<muster::sample_id>(i);
  }
  const nn::pass now{.images = batch, .samples = samples};
  const auto step = [&] {
    arena.clear_gradients();
    const auto logits = net->forward(images, now);
    nn::softmax_cross_entropy<float>(logits, labels, 10, 1.0 / static_cast<double>(batch), slopes);
    net->backward(slopes, now);
    optimizer.apply(0.01);
  };
  step();  // Touches all memory.
  for (auto _ : state) step();
  const auto done = static_cast<double>(state.iterations()) * static_cast<double>(batch);
  state.counters["images/s"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(done * net->operations() * 1e-9, benchmark::Counter::kIsRate);
}

void enrol(muster::context& context) {
  for (const std::string model : {"resnet20", "resnet56", "vgg16", "cnn"}) {
    for (const std::size_t batch : {32, 128}) {
      for (const auto backend : nn::convolution_names()) {
        const std::string name = model + "/" + std::to_string(batch) + "/" + std::string(backend);
        benchmark::RegisterBenchmark(name.c_str(), [&context, model, batch, backend](benchmark::State& state) {
          train_step(state, context, model, batch, {.backend = std::string(backend), .kernels = {}});
        })->Unit(benchmark::kMillisecond);
      }
      for (const auto kernels : nn::kernel_names()) {
        const std::string name = model + "/" + std::to_string(batch) + "/direct-" + std::string(kernels);
        if (kernels == nn::kernel_names().front()) continue;  // "direct" uses these kernels.
        benchmark::RegisterBenchmark(name.c_str(), [&context, model, batch, kernels](benchmark::State& state) {
          train_step(state, context, model, batch, {.backend = "direct", .kernels = std::string(kernels)});
        })->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return bench::run_everywhere(argc, argv, enrol); }
