#include "models.hpp"

#include <muster/core/error.hpp>

#include "catch.hpp"

namespace {

TEST_CASE("the models have the numbers of parameters that are published", "[nn]") {
  // MLBench's, whose shortcuts project.
  const std::pair<int, std::size_t> published[] = {{20, 272474}, {32, 466906}, {44, 661338}, {56, 855770}};
  for (const auto& [depth, count] : published) {
    CHECK(nn::make_resnet<float>({.depth = depth})->parameter_count() == count);
    CHECK(nn::make_resnet<float>({.depth = depth, .version = 2})->parameter_count() == count - 96);
  }
  CHECK(nn::make_resnet<float>({.depth = 20, .shortcut = 'A'})->parameter_count() == 269722);  // He et al. 2015
  CHECK(nn::make_resnet50<float>()->parameter_count() == 25557032);                            // torchvision's
  CHECK(nn::make_vgg16<float>()->parameter_count() == 15253578);
  CHECK(nn::make_cnn<float>()->parameter_count() == 93322);
  CHECK(nn::make_cnn<float>(nn::cnn_variant::dropout)->parameter_count() == 93322);
  CHECK(nn::make_cnn<float>(nn::cnn_variant::batch_norm)->parameter_count() == 93322 + 2 * (32 + 64 + 64));
}

TEST_CASE("a training step of ResNet-20 is 242 million operations an image", "[nn]") {
  // Without the projections: 40.55 million multiplications and additions forward, 0.44 of them without data gradient.
  CHECK(nn::make_resnet<float>({.shortcut = 'A'})->operations() == Approx(242.4e6).epsilon(0.002));
}

TEST_CASE("models that cannot be are refused", "[nn]") {
  CHECK_THROWS_AS(nn::make_resnet<float>({.depth = 21}), muster::configuration_error);
  CHECK_THROWS_AS(nn::make_resnet<float>({.version = 3}), muster::configuration_error);
  CHECK_THROWS_AS(nn::make_resnet<float>({.shortcut = 'C'}), muster::configuration_error);
}

}  // namespace
