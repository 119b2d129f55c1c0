// The models of bench/torch: a residual network for images of 32 x 32 points, and a perceptron.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <muster/core/error.hpp>

namespace bench {

struct model : torch::nn::Module {
  [[nodiscard]] virtual torch::Tensor forward(torch::Tensor input) = 0;
  [[nodiscard]] virtual std::vector<std::uint64_t> input_shape() const = 0;
};

inline torch::nn::Conv2d convolution(int inner, int outer, int size, int stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(inner, outer, size).stride(stride).padding(size / 2).bias(false));
}

struct basic_block : torch::nn::Module {
  basic_block(int inner, int outer, int stride) {
    using namespace torch::nn;
    body = register_module("body",
                           Sequential(convolution(inner, outer, 3, stride), BatchNorm2d(outer), ReLU(ReLUOptions(true)),
                                      convolution(outer, outer, 3, 1), BatchNorm2d(outer)));
    if (stride != 1 || inner != outer)
      shortcut = register_module("shortcut", Sequential(convolution(inner, outer, 1, stride), BatchNorm2d(outer)));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor sum = body->forward(input) + (shortcut.is_empty() ? input : shortcut->forward(input));
    return sum.relu_();
  }
  torch::nn::Sequential body{nullptr}, shortcut{nullptr};
};

// ResNet-18 for CIFAR: He et al. 2016, with a first convolution of 3 x 3 and no pooling (11.2 million parameters).
struct resnet18 final : model {
  resnet18() {
    using namespace torch::nn;
    layers = register_module("layers", Sequential(convolution(3, 64, 3, 1), BatchNorm2d(64), ReLU(ReLUOptions(true))));
    int inner = 64;
    for (const int outer : {64, 128, 256, 512}) {
      layers->push_back(basic_block(inner, outer, outer == 64 ? 1 : 2));
      layers->push_back(basic_block(outer, outer, 1));
      inner = outer;
    }
    layers->push_back(AdaptiveAvgPool2d(1));
    layers->push_back(Flatten());
    layers->push_back(Linear(512, 10));
  }
  torch::Tensor forward(torch::Tensor input) override { return layers->forward(input); }
  [[nodiscard]] std::vector<std::uint64_t> input_shape() const override { return {3, 32, 32}; }
  torch::nn::Sequential layers;
};

struct mlp final : model {
  mlp() {
    using namespace torch::nn;
    layers = register_module("layers", Sequential(Linear(64, 128), ReLU(), Linear(128, 128), ReLU(), Linear(128, 10)));
  }
  torch::Tensor forward(torch::Tensor input) override { return layers->forward(input); }
  [[nodiscard]] std::vector<std::uint64_t> input_shape() const override { return {64}; }
  torch::nn::Sequential layers;
};

inline std::shared_ptr<model> model_named(const std::string& name) {
  if (name == "resnet18") return std::make_shared<resnet18>();
  if (name == "mlp") return std::make_shared<mlp>();
  throw muster::configuration_error("no model is named '" + name +
                                    "' (there are resnet18 and mlp); name resnet18 or mlp");
}

}  // namespace bench
