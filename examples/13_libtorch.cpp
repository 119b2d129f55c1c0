// A convolutional network in LibTorch trains on the digits of MNIST, on any number of ranks. Gradients leave during the
// backward pass. Checkpoints and elastic jobs have the parameters, the optimizer's momentum and the statistics of the
// batch normalisation. The model that is saved at the end is read by torch::load, in a program without muster.
//
//   $ 13_libtorch mnist:. 2
//   epoch 1: loss ..., val_accuracy ..., ... samples in ... s
//   epoch 2: loss ..., val_accuracy ..., ... samples in ... s
//   $ muster-launch -n 2 13_libtorch mnist:. 1
//   epoch 1: loss ..., val_accuracy ..., ... samples in ... s
//
// Arguments: DATA [EPOCHS [CHECKPOINTS]]. DATA is a folder of MNIST's files. With KILL=40 in the environment the last
// of several ranks kills itself in step 40: an elastic job, muster-launch -n 3 --restart 1, goes on.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <torch/torch.h>
#include <muster/muster.hpp>
#include <muster/torch/torch.hpp>

struct net : torch::nn::Module {
  net() {
    using namespace torch::nn;
    layers = register_module(
        "layers", Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), BatchNorm2d(16), ReLU(), MaxPool2d(2),
                             Conv2d(Conv2dOptions(16, 32, 3).padding(1)), BatchNorm2d(32), ReLU(), MaxPool2d(2),
                             Flatten(), Linear(32 * 7 * 7, 64), ReLU(), Dropout(0.25), Linear(64, 10)));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    return torch::log_softmax(layers->forward((images.to(torch::kFloat) / 255).unsqueeze(1)), 1);
  }
  torch::nn::Sequential layers;
};

// Returns the share of the samples that the model classifies correctly, over all ranks.
double accuracy_of(net& model, muster::group& ranks, const muster::any_record_source& data) {
  const torch::NoGradGuard no_gradients;
  model.eval();
  double counts[2] = {};
  auto batches = data | muster::batch(1000);
  while (const auto batch = batches.next({ranks.rank(), ranks.size()})) {
    const auto [input, target] = muster::torch::tensors(batch);
    counts[0] += model.forward(input).argmax(1).eq(target).sum().item<double>();
    counts[1] += static_cast<double>(batch.samples.size());
    batches.commit();
  }
  model.train();
  muster::allreduce(ranks, counts, muster::sum);
  return counts[0] / counts[1];
}

void train(muster::context& context, int argc, char** argv) {
  const std::string data = argc > 1 ? argv[1] : "mnist:.";
  const auto epochs = static_cast<std::uint64_t>(argc > 2 ? std::atoi(argv[2]) : 3);
  const char* const kill = std::getenv("KILL");
  const auto test = muster::open_source(data + "?split=test");
  auto loader = muster::open_source(data) | muster::shuffle(1) | muster::batch(128) | muster::prefetch(4);
  torch::manual_seed(1);
  auto module = std::make_shared<net>();
  muster::torch::data_parallel model(context, module);  // all ranks have rank 0's parameters and buffers
  torch::manual_seed(1 + static_cast<std::uint64_t>(context.launcher().rank));  // other dropout masks at each
  torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto updater = muster::torch::state(optimizer);
  muster::training training(context, model, updater, loader);

  muster::train_options options{.epochs = epochs, .checkpoint = argc > 3 ? argv[3] : ""};
  options.each_epoch = [&](muster::training_step& step) {
    step.report("val_accuracy", accuracy_of(*module, step.group(), test), step.group().rank() == 0 ? 1.0 : 0.0);
  };
  options.at_end = [&](muster::training_step& step) {
    if (step.group().rank() == 0 && argc > 3) torch::save(module, std::string(argv[3]) + "/model.pt");
  };
  training.run(options, [&](muster::training_step& step) {
    if (kill && step.number() == std::strtoul(kill, nullptr, 10) && step.generation() == 1 &&
        step.group().rank() == step.group().size() - 1)
      std::raise(SIGKILL);
    const auto batch = step.next(loader);
    const auto [input, target] = muster::torch::tensors(batch);  // no copy of the batch
    const auto loss = torch::nll_loss(model->forward(input), target);
    step.backward(model, loss);  // buckets leave during the backward pass
    step.update(updater);        // at every rank or at none
    step.report("loss", loss.item<double>(), batch.samples.size());
  });
}

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context, muster::group&) { train(context, argc, argv); },
                          {.help = [] { return std::string("13_libtorch DATA [EPOCHS [CHECKPOINTS]]\n"); }});
}
