// Tests that several threads of a rank compute the same results as one thread.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/random.hpp>

#include "catch.hpp"
#include "loss.hpp"
#include "models.hpp"
#include "numbers.hpp"
#include "processor.hpp"

namespace {

using maker = std::function<std::unique_ptr<nn::network<float>>(const nn::execution&)>;

/// Returns all numbers that two steps with `images` images compute.
std::vector<float> numbers_of(const maker& make, const nn::execution& execution, std::size_t images) {
  const nn::flush_denormals flush;
  const auto net = make(execution);
  test::parameter_memory<float> memory(*net);
  net->initialise(3);
  std::vector<float> all;
  for (std::uint64_t step = 0; step < 2; ++step) {
    const auto pixels = test::numbers<float>(step, images * net->input_shape().size(), 3);
    std::vector<float> labels(images), slopes(images * net->classes());
    std::vector<muster::sample_id> samples(images);
    for (std::size_t i = 0; i < images; ++i) {
      labels[i] = static_cast<float>(i % net->classes());
      samples[i] = 10 * step + i;
    }
    const nn::pass now{.images = images, .samples = samples, .key = step};
    memory.clear_gradients();
    const auto logits = net->forward(pixels, now);
    all.insert(all.end(), logits.begin(), logits.end());
    nn::softmax_cross_entropy<float>(logits, labels, net->classes(), 1.0, slopes);
    net->backward(slopes, now);
    for (const auto& gradient : memory.gradients) all.insert(all.end(), gradient.begin(), gradient.end());
  }
  all.insert(all.end(), net->statistics().begin(), net->statistics().end());
  return all;
}

TEST_CASE("a network computes the same bits with any number of threads", "[nn]") {
  const std::vector<std::pair<std::string, maker>> models = {
      {"resnet8, shortcut B",
       [](const nn::execution& execution) { return nn::make_resnet<float>({.depth = 8}, execution); }},
      {"resnet8, v2, shortcut A",
       [](const nn::execution& execution) {
         return nn::make_resnet<float>({.depth = 8, .version = 2, .shortcut = 'A'}, execution);
       }},
      {"cnn with dropout",
       [](const nn::execution& execution) {
         return nn::make_cnn<float>(nn::cnn_variant::dropout, 10, {28, 28, 1}, execution);
       }},
      {"cnn with batch normalisation", [](const nn::execution& execution) {
         return nn::make_cnn<float>(nn::cnn_variant::batch_norm, 10, {28, 28, 1}, execution);
       }}};
  const std::uint64_t seed = 77;
  muster::random_stream random(seed);
  for (const auto& [name, make] : models) {
    for (const auto backend : nn::convolution_names()) {
      const std::size_t images = 1 + random.below(24);
      INFO(name << ", " << backend << ", images " << images << ", seed " << seed);
      nn::execution execution{.backend = std::string(backend), .kernels = {}};
      const auto alone = numbers_of(make, execution, images);
      for (const int threads : {2, 3, 7}) {
        execution.threads = threads;
        const auto together = numbers_of(make, execution, images);
        CHECK(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)) == 0);
      }
    }
  }
}

}  // namespace
