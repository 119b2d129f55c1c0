#include <muster/core/update.hpp>

#include <cmath>
#include <vector>

#include <muster/core/random.hpp>

#include "catch.hpp"

namespace {

std::vector<float> draw(muster::random_stream& stream, std::size_t size) {
  std::vector<float> values(size);
  for (auto& value : values) value = static_cast<float>(stream.normal());
  return values;
}

// torch.optim.SGD with dampening 0, transcribed from its documentation, in double precision. Its velocity is the first
// gradient at the first step instead of zeros.
struct pytorch_sgd {
  muster::sgd_step<double> step;
  std::vector<double> parameters;
  std::vector<double> velocity = {};

  void apply(const std::vector<float>& gradients) {
    const bool first = velocity.empty();
    if (first) velocity.resize(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      double g = static_cast<double>(gradients[i]);
      if (step.decay != 0) g = g + step.decay * parameters[i];
      if (step.momentum != 0) {
        velocity[i] = first ? g : step.momentum * velocity[i] + g;
        g = step.nesterov ? g + step.momentum * velocity[i] : velocity[i];
      }
      parameters[i] = parameters[i] - step.learning_rate * g;
    }
  }
};

}  // namespace

TEST_CASE("SGD steps as PyTorch's documentation says") {
  const std::uint64_t seed = GENERATE(1u, 2u, 3u);
  const std::size_t size = GENERATE(0u, 1u, 7u, 64u, 1003u);
  const double momentum = GENERATE(0.0, 0.9);
  const double decay = GENERATE(0.0, 0.01);
  const bool nesterov = momentum != 0 && GENERATE(false, true);
  CAPTURE(seed, size, momentum, decay, nesterov);

  muster::random_stream stream(seed);
  auto parameters = draw(stream, size);
  std::vector<float> velocity(momentum != 0 ? size : 0);
  pytorch_sgd expected{{.learning_rate = 0.1, .momentum = momentum, .nesterov = nesterov, .decay = decay},
                       {parameters.begin(), parameters.end()}};
  const muster::sgd_step<float> step{.learning_rate = 0.1f,
                                     .momentum = static_cast<float>(momentum),
                                     .nesterov = nesterov,
                                     .decay = static_cast<float>(decay)};
  for (int i = 0; i < 10; ++i) {
    const auto gradients = draw(stream, size);
    muster::update(step, parameters, gradients, {velocity});
    expected.apply(gradients);
  }
  double worst = 0;
  for (std::size_t i = 0; i < size; ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(parameters[i]) - expected.parameters[i]));
  }
  CHECK(worst < 2e-5);
}

TEST_CASE("SGD works in double precision to the last digits") {
  std::vector<double> parameters{1.0, -2.0};
  std::vector<double> velocity{0.0, 0.5};
  const std::vector<double> gradients{0.25, 4.0};
  muster::update(muster::sgd_step<double>{.learning_rate = 0.5, .momentum = 0.5, .nesterov = true, .decay = 0.25},
                 parameters, gradients, {velocity});
  // g = {0.5, 3.5}; v = {0.5, 3.75}; parameters - 0.5 * (g + 0.5 v)
  CHECK(velocity == std::vector<double>{0.5, 3.75});
  CHECK(parameters == std::vector<double>{0.625, -4.6875});
}

TEST_CASE("spans of different lengths are refused before anything is written") {
  std::vector<float> parameters(3, 1.0f);
  std::vector<float> gradients(2, 1.0f);
  CHECK_THROWS_AS(muster::update(muster::sgd_step<float>{.learning_rate = 1.0f}, parameters, gradients),
                  muster::configuration_error);
  gradients.push_back(1.0f);
  CHECK_THROWS_AS(
      muster::update(muster::sgd_step<float>{.learning_rate = 1.0f, .momentum = 0.5f}, parameters, gradients),
      muster::configuration_error);
  CHECK(parameters == std::vector<float>(3, 1.0f));
}
