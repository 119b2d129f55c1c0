// ResNet-18 (He et al. 2016) in LibTorch on CIFAR-10, data parallel: augmentation and prefetching by muster, momentum
// and batch norms by LibTorch, a cosine schedule, checkpoints, and elastic jobs. docs/libtorch.md describes the parts.
//
//   $ mpirun -n 2 torch_resnet18 cifar10:/data/cifar10 30 checkpoints
//   $ muster-launch -n 4 --restart 9 torch_resnet18 cifar10:/data/cifar10 30 checkpoints
//
// Arguments: DATA EPOCHS [CHECKPOINTS [STEPS]]. STEPS ends the training earlier.
#include <cstdlib>
#include <memory>
#include <string>

#include <torch/torch.h>
#include <muster/muster.hpp>
#include <muster/torch/torch.hpp>

namespace nn = torch::nn;

nn::Conv2d convolution(int inner, int outer, int size, int stride) {
  return nn::Conv2d(nn::Conv2dOptions(inner, outer, size).stride(stride).padding(size / 2).bias(false));
}

struct basic_block : nn::Module {
  basic_block(int inner, int outer, int stride) {
    body = register_module("body", nn::Sequential(convolution(inner, outer, 3, stride), nn::BatchNorm2d(outer),
                                                  nn::ReLU(), convolution(outer, outer, 3, 1), nn::BatchNorm2d(outer)));
    if (stride != 1)
      shortcut =
          register_module("shortcut", nn::Sequential(convolution(inner, outer, 1, stride), nn::BatchNorm2d(outer)));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return torch::relu(body->forward(input) + (shortcut.is_empty() ? input : shortcut->forward(input)));
  }
  nn::Sequential body{nullptr}, shortcut{nullptr};
};

struct resnet18 : nn::Module {
  resnet18() {
    layers = register_module("layers", nn::Sequential(convolution(3, 64, 3, 1), nn::BatchNorm2d(64), nn::ReLU()));
    for (int outer = 64, inner = 64; outer <= 512; inner = outer, outer *= 2) {
      layers->push_back(basic_block(inner, outer, outer == 64 ? 1 : 2));
      layers->push_back(basic_block(outer, outer, 1));
    }
    layers->push_back(nn::AdaptiveAvgPool2d(1));
    layers->push_back(nn::Flatten());
    layers->push_back(nn::Linear(512, 10));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    return layers->forward((images.to(torch::kFloat) - 120.0) / 64.0);  // about the mean and deviation of the pixels
  }
  nn::Sequential layers;
};

// Returns the number of samples that the model classifies correctly in a batch.
double hits(const torch::Tensor& output, const torch::Tensor& target) {
  return output.argmax(1).eq(target).sum().item<double>();
}

void train(muster::context& context, int argc, char** argv) {
  const auto epochs = std::strtoull(argv[2], nullptr, 10);
  auto loader = muster::open_source(argv[1]) | muster::shuffle(1) | muster::batch(128) |
                muster::augment(muster::crop_flip) | muster::prefetch(4);
  const auto test = muster::open_source(std::string(argv[1]) + "?split=test");
  torch::manual_seed(1);
  auto net = std::make_shared<resnet18>();
  muster::torch::data_parallel model(context, net);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(5e-4));
  auto updater = muster::torch::state(optimizer);
  const auto rate = muster::parse_schedule("cosine:0.1,epochs=" + std::to_string(epochs) + ",warmup=1");
  muster::training training(context, model, updater, loader);

  muster::train_options options{.epochs = epochs, .checkpoint = argc > 3 ? argv[3] : ""};
  if (argc > 4) options.steps = std::strtoull(argv[4], nullptr, 10);
  options.each_epoch = [&](muster::training_step& step) {
    const torch::NoGradGuard no_gradients;
    net->eval();
    auto batches = test | muster::batch(500);
    while (const auto batch = batches.next({step.group().rank(), step.group().size()})) {
      const auto [input, target] = muster::torch::tensors(batch);
      step.report_sum("val_accuracy", hits(net->forward(input), target), static_cast<double>(batch.samples.size()));
      batches.commit();
    }
    net->train();
  };
  options.at_end = [&](muster::training_step& step) {
    if (step.group().rank() == 0) torch::save(net, "resnet18.pt");
  };
  training.run(options, [&](muster::training_step& step) {
    const auto batch = step.next(loader);
    const auto [input, target] = muster::torch::tensors(batch);
    const auto output = model->forward(input);
    const auto loss = torch::cross_entropy_loss(output, target);
    step.backward(model, loss);
    step.update(updater, rate);
    step.report("loss", loss.item<double>(), batch.samples.size());
    step.report_sum("accuracy", hits(output, target), static_cast<double>(batch.samples.size()));
  });
}

int main(int argc, char** argv) {
  const std::string usage = "torch_resnet18 DATA EPOCHS [CHECKPOINTS [STEPS]]\n";
  return muster::run_main(argc, argv,
                          [&](muster::context& context, muster::group&) {
                            if (argc < 3)
                              throw muster::configuration_error("arguments are missing (" +
                                                                usage.substr(0, usage.size() - 1) +
                                                                "); give DATA and EPOCHS");
                            train(context, argc, argv);
                          },
                          {.help = [&] { return usage; }});
}
