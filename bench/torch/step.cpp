// A training step of LibTorch on synthetic data: the bare step, the step with gradients that leave during the backward
// pass (muster::torch::data_parallel), and with one allreduce behind it, as TorchFort has it. Prints the median of the
// seconds per step at the slowest rank, and the loss.
//
//   mpirun -n 2 build/release/bench/torch_step resnet18 32 10 hooks      (or bare, training, behind)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <muster/muster.hpp>
#include <muster/torch/torch.hpp>

#include "models.hpp"

namespace {

struct measured {
  std::vector<double> seconds;
  double loss = 0;
};

class stopwatch {
 public:
  double lap() {
    const auto now = muster::clock::now();
    return muster::seconds(now - std::exchange(last_, now)).count();
  }

 private:
  muster::clock::time_point last_ = muster::clock::now();
};

// Records of images of noise, the same in every run.
class noise_source {
 public:
  noise_source(std::vector<std::uint64_t> shape, std::uint64_t size) : size_(size) {
    schema_.fields = {{"image", muster::dtype::float32, std::move(shape)}};
    schema_.labels = {"class"};
    values_ = torch::randn({static_cast<std::int64_t>(schema_.record_bytes() / sizeof(float)) * 64});
  }
  [[nodiscard]] std::string_view name() const { return "noise"; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t digest() const { return size_; }
  [[nodiscard]] const muster::data::record_schema& schema() const { return schema_; }
  void sizes(std::span<const muster::sample_id> ids, std::span<std::uint64_t> out) const {
    std::fill_n(out.begin(), ids.size(), schema_.record_bytes());
  }
  void read(std::span<const muster::sample_id> ids, const muster::data::record_rows& rows,
            std::vector<muster::bad_record>*) const {
    const auto bytes = static_cast<std::size_t>(schema_.record_bytes());
    const auto* const values = static_cast<const std::byte*>(values_.data_ptr());
    for (std::size_t k = 0; k < ids.size(); ++k) {
      if (!rows.bytes.empty()) std::copy_n(values + (ids[k] % 64) * bytes, bytes, rows.bytes.data() + k * bytes);
      if (!rows.labels.empty()) rows.labels[k] = static_cast<float>(ids[k] % 10);
    }
  }

 private:
  std::uint64_t size_;
  muster::data::record_schema schema_;
  torch::Tensor values_;
};

// Steps without muster's training: `after` runs between the backward pass and the optimizer.
template <class After>
measured loop(bench::model& net, torch::optim::Optimizer& optimizer, const torch::Tensor& input,
              const torch::Tensor& target, int steps, const After& after) {
  measured result;
  stopwatch watch;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(net.forward(input), target);
    loss.backward();
    after();
    optimizer.step();
    result.loss = loss.item<double>();
    result.seconds.push_back(watch.lap());
  }
  return result;
}

measured train(muster::context& context, const std::shared_ptr<bench::model>& net, torch::optim::Optimizer& optimizer,
               std::uint64_t batch, int steps, bool deferred) {
  measured result;
  muster::torch::data_parallel model(context, net);
  auto updater = muster::torch::state(optimizer);
  const muster::data::any_record_source source(
      noise_source(net->input_shape(), batch * static_cast<std::uint64_t>(steps)));
  auto loader = source | muster::shuffle(1) | muster::batch(batch) | muster::prefetch(2);
  muster::training training(context, model, updater, loader);
  stopwatch watch;
  training.run({.steps = static_cast<std::uint64_t>(steps), .log = nullptr}, [&](muster::training_step& step) {
    const auto [input, target] = muster::torch::tensors(step.next(loader));
    const auto loss = torch::cross_entropy_loss(model->forward(input), target);
    step.backward(model, loss);
    if (deferred)
      step.update(updater);
    else
      step.update([&] { optimizer.step(); });
    result.loss = loss.item<double>();
    result.seconds.push_back(watch.lap());
  });
  return result;
}

measured run(muster::context& context, muster::group& world, const std::string& name, std::int64_t batch, int steps,
             const std::string& mode) {
  torch::manual_seed(1);
  auto net = bench::model_named(name);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  if (mode == "training" || mode == "training-at-once")
    return train(context, net, optimizer, static_cast<std::uint64_t>(batch * world.size()), steps, mode == "training");
  std::vector<std::int64_t> shape{batch};
  for (const auto extent : net->input_shape()) shape.push_back(static_cast<std::int64_t>(extent));
  torch::manual_seed(2 + static_cast<std::uint64_t>(world.rank()));
  const auto input = torch::randn(shape), target = torch::randint(10, {batch}, torch::kLong);
  if (mode == "bare") return loop(*net, optimizer, input, target, steps, [] {});
  if (mode == "hooks") {
    muster::torch::data_parallel model(context, net);
    return loop(*net, optimizer, input, target, steps, [] {});
  }
  if (mode == "behind") {
    std::int64_t size = 0;
    for (const auto& parameter : net->parameters()) size += parameter.numel();
    auto flat = context.allocate<float>(static_cast<std::size_t>(size));
    return loop(*net, optimizer, input, target, steps, [&] {
      const auto for_each = [&](const auto& f) {
        float* at = flat.data();
        for (auto& parameter : net->parameters()) {
          f(torch::from_blob(at, parameter.sizes()), parameter.mutable_grad());
          at += parameter.numel();
        }
      };
      for_each([](torch::Tensor place, const torch::Tensor& gradient) { place.copy_(gradient); });
      muster::allreduce(world, flat.span(), muster::mean);
      for_each([](const torch::Tensor& place, torch::Tensor& gradient) { gradient.copy_(place); });
    });
  }
  throw muster::configuration_error("no mode is named '" + mode +
                                    "' (there are bare, hooks, training, training-at-once, "
                                    "behind); name a mode of this list");
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(
      argc, argv,
      [&](muster::context& context, muster::group& world) {
        if (argc != 5)
          throw muster::configuration_error("the arguments are MODEL BATCH STEPS MODE (see --help); give all");
        at::set_num_threads(1);
        auto result = run(context, world, argv[1], std::atoll(argv[2]), std::atoi(argv[3]) + 2, argv[4]);
        result.seconds.erase(result.seconds.begin(), result.seconds.begin() + 2);  // allocations of the first steps
        muster::allreduce(world, result.seconds, muster::max);
        std::ranges::sort(result.seconds);
        if (world.rank() != 0) return;
        std::printf("%s %s batch %s ranks %d: %.6f s/step, loss %.4f\n", argv[1], argv[4], argv[2], world.size(),
                    result.seconds[result.seconds.size() / 2], result.loss);
      },
      {.help = [] {
        return std::string("torch_step resnet18|mlp BATCH STEPS bare|hooks|training|training-at-once|behind\n");
      }});
}
