#include "models.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "numbers.hpp"

namespace {

TEST_CASE("the models have the numbers of parameters that are published", "[nn]") {
  // Parameter counts of MLBench, whose shortcuts project.
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
  CHECK(nn::make_cnn<float>(nn::cnn_variant::batch_norm)->parameter_count() == 93322 + 2 * (32 + 64));
}

/// The book's network written as loops over one batch, front to back.
struct loops {
  using pixels = std::vector<double>;  // NHWC
  const nn::network<double>& net;
  std::size_t images, height, width, channels;
  pixels now;
  std::size_t next = 0;  // index of the next parameter

  std::span<const double> take() { return net.parameters()[next++].values; }
  [[nodiscard]] std::size_t at(std::size_t n, std::size_t y, std::size_t x, std::size_t c) const {
    return ((n * height + y) * width + x) * channels + c;
  }
  /// Computes to[n, y, x, c] = value(n, y, x, c) for a new extent.
  void become(std::size_t rows, std::size_t columns, std::size_t depth, const auto& value) {
    pixels next_pixels;
    for (std::size_t n = 0; n < images; ++n)
      for (std::size_t y = 0; y < rows; ++y)
        for (std::size_t x = 0; x < columns; ++x)
          for (std::size_t c = 0; c < depth; ++c) next_pixels.push_back(value(n, y, x, c));
    now = std::move(next_pixels);
    height = rows, width = columns, channels = depth;
  }
  void each(const auto& f) {
    for (double& x : now) x = f(x);
  }
  void relu() {
    each([](double x) { return x > 0 ? x : 0; });
  }
  void convolve(std::size_t depth) {
    const auto weights = take(), bias = take();
    become(height - 2, width - 2, depth, [&](std::size_t n, std::size_t y, std::size_t x, std::size_t c) {
      double sum = bias[c];
      for (std::size_t tap = 0; tap < 9 * channels; ++tap)
        sum += weights[tap * depth + c] * now[at(n, y + tap / channels / 3, x + tap / channels % 3, tap % channels)];
      return sum;
    });
    relu();
  }
  void pool() {
    become(height / 2, width / 2, channels, [&](std::size_t n, std::size_t y, std::size_t x, std::size_t c) {
      double most = now[at(n, 2 * y, 2 * x, c)];
      for (const std::size_t k : {1u, 2u, 3u}) most = std::max(most, now[at(n, 2 * y + k / 2, 2 * x + k % 2, c)]);
      return most;
    });
  }
  /// Normalises by the batch's own mean and variance, and applies the sigmoid.
  void normalise() {
    const auto scale = take(), shift = take();
    for (std::size_t c = 0; c < channels; ++c) {
      double mean = 0, variance = 0;
      const double count = static_cast<double>(now.size() / channels);
      for (std::size_t k = c; k < now.size(); k += channels) mean += now[k] / count;
      for (std::size_t k = c; k < now.size(); k += channels) variance += (now[k] - mean) * (now[k] - mean) / count;
      for (std::size_t k = c; k < now.size(); k += channels)
        now[k] = (now[k] - mean) / std::sqrt(variance + 1e-5) * scale[c] + shift[c];
    }
    each([](double x) { return 1 / (1 + std::exp(-x)); });
  }
  void dense(std::size_t size) {
    const auto weights = take(), bias = take();
    const std::size_t from = height * width * channels;
    become(1, 1, size, [&](std::size_t n, std::size_t, std::size_t, std::size_t c) {
      double sum = bias[c];
      for (std::size_t k = 0; k < from; ++k) sum += weights[k * size + c] * now[n * from + k];
      return sum;
    });
  }
};

TEST_CASE("the book's networks are what loops in the book's order compute", "[nn]") {
  const nn::extent input{20, 18, 1};
  const std::vector<muster::sample_id> samples{4, 9, 5};
  const auto images = test::numbers<double>(1, samples.size() * input.size());
  using enum nn::cnn_variant;
  for (const auto variant : {plain, dropout, batch_norm}) {
    CAPTURE(static_cast<int>(variant));
    const auto net = nn::make_cnn<double>(variant, 5, input);
    const test::parameter_memory<double> memory(*net);
    net->initialise(7);
    const bool normalised = variant == batch_norm;
    // A dropout is random in training, and the identity in evaluation.
    const nn::pass now{.images = samples.size(), .training = variant != dropout, .samples = samples, .key = 3};
    const auto logits = net->forward(images, now);
    loops book{*net, samples.size(), input.height, input.width, 1, images};
    for (const std::size_t channels : {32u, 64u}) {
      book.convolve(channels);
      if (normalised) book.normalise();
      book.pool();
    }
    book.convolve(64);
    book.dense(64);
    book.relu();
    book.dense(5);
    REQUIRE(book.next == net->parameters().size());
    REQUIRE(book.now.size() == logits.size());
    for (std::size_t k = 0; k < logits.size(); ++k) CHECK(logits[k] == Approx(book.now[k]).epsilon(1e-9).margin(1e-9));
    CHECK(net->statistics().size() == (normalised ? 2 * (32 + 64) : 0));
  }
}

TEST_CASE("the book's network drops out once, before the third convolution", "[nn]") {
  const nn::extent input{20, 20, 1};
  const std::vector<muster::sample_id> samples{4, 9};
  const auto images = test::numbers<double>(1, samples.size() * input.size());
  const auto dropout = nn::make_cnn<double>(nn::cnn_variant::dropout, 5, input);
  nn::network<double> written(input);
  const auto convolve = [&](auto& in, std::size_t channels) -> auto& {
    return written.relu(written.convolve(in, {.channels = channels, .kernel = 3, .bias = true}));
  };
  auto& second = written.max(convolve(written.max(convolve(written.input(), 32), {}), 64), {});
  written.finish(written.dense(written.relu(written.dense(convolve(written.drop(second, 0.5), 64), 64)), 5));
  const auto logits_of = [&](nn::network<double>& net, std::uint64_t key, bool training = true) {
    const test::parameter_memory<double> memory(net);
    net.initialise(7);
    const auto logits =
        net.forward(images, {.images = samples.size(), .training = training, .samples = samples, .key = key});
    return std::vector<double>(logits.begin(), logits.end());
  };
  CHECK(logits_of(*dropout, 3) == logits_of(written, 3));
  CHECK(logits_of(*dropout, 3) != logits_of(*dropout, 4));  // a different step
  CHECK(logits_of(*dropout, 3, false) == logits_of(*dropout, 4, false));
}

TEST_CASE("a training step of ResNet-20 is 242 million operations an image", "[nn]") {
  // Without the projections: 40.55 million multiplications and additions in the forward pass, of which 0.44 million
  // need no data gradient.
  CHECK(nn::make_resnet<float>({.shortcut = 'A'})->operations() == Approx(242.4e6).epsilon(0.002));
}

TEST_CASE("models that cannot be are refused", "[nn]") {
  CHECK_THROWS_AS(nn::make_resnet<float>({.depth = 21}), muster::configuration_error);
  CHECK_THROWS_AS(nn::make_resnet<float>({.version = 3}), muster::configuration_error);
  CHECK_THROWS_AS(nn::make_resnet<float>({.shortcut = 'C'}), muster::configuration_error);
}

}  // namespace
