#include "models.hpp"

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "numbers.hpp"

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

TEST_CASE("the book's network drops out before the third convolution, or normalises behind its activations", "[nn]") {
  const nn::extent input{20, 20, 1};
  const std::vector<muster::sample_id> samples{4, 9};
  const auto images = test::numbers<double>(1, samples.size() * input.size());
  const nn::pass now{.images = samples.size(), .samples = samples, .key = 3};

  const auto dropout = nn::make_cnn<double>(nn::cnn_variant::dropout, 5, input);
  nn::network<double> written(input);  // as the book has it
  const auto convolve = [&](auto& in, std::size_t channels) -> auto& {
    return written.relu(written.convolve(in, {.channels = channels, .kernel = 3, .bias = true}));
  };
  auto& second = written.max(convolve(written.max(convolve(written.input(), 32), {}), 64), {});
  written.finish(written.dense(written.relu(written.dense(convolve(written.drop(second, 0.5), 64), 64)), 5));
  const auto logits_of = [&](nn::network<double>& net) {
    const test::parameter_memory<double> memory(net);
    net.initialise(7);
    const auto logits = net.forward(images, now);
    return std::vector<double>(logits.begin(), logits.end());
  };
  CHECK(logits_of(*dropout) == logits_of(written));

  // What a ReLU gives is not negative, and so are the means of it; those in front of it have both signs.
  const auto normalised = nn::make_cnn<double>(nn::cnn_variant::batch_norm, 5, input);
  (void)logits_of(*normalised);
  const auto statistics = normalised->statistics();
  REQUIRE(statistics.size() == 2 * (32 + 64 + 64));
  for (std::size_t begin = 0; const std::size_t channels : {32u, 64u, 64u}) {
    for (std::size_t c = 0; c < channels; ++c) CHECK(statistics[begin + c] >= 0);
    begin += 2 * channels;
  }
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
