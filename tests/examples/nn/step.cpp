// Compares one training step of ResNet-20 with PyTorch's step in resnet20_step.json, which resnet20_step.py writes.
#include <cmath>
#include <fstream>

#include <muster/comm/context.hpp>
#include <muster/train/optimizers/optimizer.hpp>

#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "loss.hpp"
#include "models.hpp"
#include "numbers.hpp"
#include "train/heap.hpp"

namespace {

void compare_step(const nn::execution& execution) {
  INFO(execution.backend << " " << execution.kernels);
  std::ifstream file(MUSTER_SOURCE_DIR "/tests/examples/nn/resnet20_step.json");
  const auto reference = nlohmann::json::parse(file);
  const auto net = nn::make_resnet<float>({}, execution);
  heap memory;
  muster::arena arena(memory, net->shapes());
  net->bind(arena);
  for (const auto& each : net->parameters()) {
    const bool norm_scale = each.initialisation == nn::start::ones;
    const double scale =
        each.initialisation == nn::start::kaiming
            ? std::sqrt(24.0 / static_cast<double>(each.extents[0] * each.extents[1] * each.extents[3]))
            : 0.2;
    const auto values = test::numbers<float>(each.index, each.values.size(), scale, norm_scale ? 1 : 0);
    std::copy(values.begin(), values.end(), each.values.begin());
  }
  constexpr std::size_t batch = 8;
  const auto pixels = test::numbers<float>(1000, batch * 32 * 32 * 3, 3);
  std::vector<float> labels(batch), slopes(batch * 10);
  for (std::size_t i = 0; i < batch; ++i) labels[i] = static_cast<float>(i * 3 % 10);
  const nn::pass now{.images = batch};
  const auto sums =
      nn::softmax_cross_entropy<float>(net->forward(pixels, now), labels, 10, 1.0 / static_cast<double>(batch), slopes);
  CHECK(sums.loss / static_cast<double>(batch) == Approx(reference["loss"].get<double>()).epsilon(1e-5));
  net->backward(slopes, now);
  muster::sgd optimizer(arena, {.momentum = 0.9f, .nesterov = true, .decay = 1e-4f});
  std::vector<std::vector<float>> gradients;
  for (const auto& each : net->parameters()) gradients.emplace_back(each.gradient.begin(), each.gradient.end());
  optimizer.apply(0.1);
  REQUIRE(reference["parameters"].size() == net->parameters().size());
  for (const auto& each : net->parameters()) {
    const auto& right = reference["parameters"][each.index];
    INFO(each.name);
    REQUIRE(right["size"].get<std::size_t>() == each.values.size());
    const auto& gradient = gradients[each.index];
    double squares = 0;
    for (const float value : gradient) squares += double{value} * double{value};
    const double norm = right["norm"].get<double>();
    CHECK(std::sqrt(squares) == Approx(norm).epsilon(1e-4));
    // The error of an element is relative to the largest element.
    for (std::size_t k = 0; k < right["at"].size(); ++k) {
      const auto at = right["at"][k].get<std::size_t>();
      CHECK(double{gradient[at]} == Approx(right["gradient"][k].get<double>()).margin(1e-4 * norm));
      CHECK(double{each.values[at]} == Approx(right["after"][k].get<double>()).epsilon(1e-4).margin(1e-4 * norm));
    }
  }
  for (std::size_t c = 0; c < 16; ++c) {
    CHECK(double{net->statistics()[c]} == Approx(reference["running_mean"][c].get<double>()).margin(1e-5));
    CHECK(double{net->statistics()[16 + c]} == Approx(reference["running_var"][c].get<double>()).epsilon(1e-4));
  }
}

TEST_CASE("a training step of ResNet-20 is PyTorch's", "[nn]") {
  for (const auto kernels : nn::kernel_names()) compare_step({.backend = "direct", .kernels = std::string(kernels)});
  for (const auto backend : nn::convolution_names()) {
    if (backend != "direct") compare_step({.backend = std::string(backend), .kernels = {}});
  }
}

}  // namespace
