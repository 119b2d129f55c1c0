// Compares every convolution with sums written according to the definition, in double.
#include "convolution.hpp"
#include "convolution_winograd.hpp"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"
#include "numbers.hpp"

namespace {

struct passes {
  std::vector<double> out, in_slope, weight_slope;
};

/// Computes the passes by definition.
passes oracle(const nn::convolution_shape& s, std::size_t images, const std::vector<double>& in,
              const std::vector<double>& weights, const std::vector<double>& slope) {
  const nn::extent o = s.out();
  passes expected{std::vector<double>(images * o.size()), std::vector<double>(in.size()),
                  std::vector<double>(weights.size())};
  for (std::size_t n = 0; n < images; ++n) {
    for (std::size_t y = 0; y < o.height; ++y) {
      for (std::size_t x = 0; x < o.width; ++x) {
        for (std::size_t ky = 0; ky < s.kernel; ++ky) {
          for (std::size_t kx = 0; kx < s.kernel; ++kx) {
            const std::size_t iy = y * s.stride + ky, ix = x * s.stride + kx;
            if (iy < s.padding || ix < s.padding || iy - s.padding >= s.in.height || ix - s.padding >= s.in.width) {
              continue;
            }
            for (std::size_t ci = 0; ci < s.in.channels; ++ci) {
              const std::size_t i =
                  ((n * s.in.height + iy - s.padding) * s.in.width + ix - s.padding) * s.in.channels + ci;
              for (std::size_t co = 0; co < o.channels; ++co) {
                const std::size_t w = ((ky * s.kernel + kx) * s.in.channels + ci) * o.channels + co;
                const std::size_t to = ((n * o.height + y) * o.width + x) * o.channels + co;
                expected.out[to] += in[i] * weights[w];
                expected.in_slope[i] += slope[to] * weights[w];
                expected.weight_slope[w] += slope[to] * in[i];
              }
            }
          }
        }
      }
    }
  }
  return expected;
}

template <class T>
void fill(const nn::image_view<T>& to, const double* from) {
  for (std::size_t y = 0; y < to.height; ++y) {
    for (std::size_t x = 0; x < to.width * to.channels; ++x) {
      to.data[y * to.row_step + x] = static_cast<T>(from[y * to.width * to.channels + x]);
    }
  }
}

template <class T>
void check_close(const std::vector<T>& results, const std::vector<double>& right, double tolerance) {
  double largest = 0, worst = 0;
  for (const double value : right) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < right.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(results[i]) - right[i]));
  }
  CHECK(worst <= tolerance * largest);
}

/// Uses Winograd's algorithm wherever it is possible, even where it is not faster.
template <class T>
std::unique_ptr<nn::convolution<T>> make(const std::string& backend, const nn::convolution_shape& shape,
                                         std::string_view kernels) {
  const auto& set = nn::find_kernels<T>(kernels);
  if (backend == "winograd" && nn::winograd_convolution<T>::can(shape)) {
    return std::make_unique<nn::winograd_convolution<T>>(shape, set, std::make_shared<nn::workspace<T>>());
  }
  return nn::make_convolution<T>(backend, shape, set);
}

template <class T>
void compare(const std::string& backend, std::string_view kernels, const nn::convolution_shape& shape,
             std::size_t images, std::uint64_t seed, double tolerance) {
  const auto in = test::numbers<double>(seed, images * shape.in.size());
  const auto weights = test::numbers<double>(seed + 1, shape.weights());
  const auto slope = test::numbers<double>(seed + 2, images * shape.out().size());
  const auto right = oracle(shape, images, in, weights, slope);
  const auto convolution = make<T>(backend, shape, kernels), in_place = make<T>(backend, shape, kernels);
  const std::vector<T> w(weights.begin(), weights.end());
  const auto bias = test::numbers<double>(seed + 3, shape.out_channels);
  const std::vector<T> b(bias.begin(), bias.end());
  const std::vector<double> before(in.size(), 0.25);
  std::vector<T> out(right.out.size()), biased(out.size()), in_slope(before.begin(), before.end()),
      set(in.size(), T(9)), weight_slope(w.size()), again(w.size());
  convolution->begin(w);
  in_place->begin(w);
  for (std::size_t first = 0; first < images; first += convolution->block()) {
    const std::size_t count = std::min(convolution->block(), images - first);
    for (std::size_t k = 0; k < count; ++k) {
      fill(convolution->input(k), in.data() + (first + k) * shape.in.size());
      fill(in_place->input(k), in.data() + (first + k) * shape.in.size());
      fill(convolution->slope(k), slope.data() + (first + k) * shape.out().size());
    }
    convolution->forward(count, nullptr, out.data() + first * shape.out().size());
    convolution->forward(count, b.data(), biased.data() + first * shape.out().size());
    convolution->backward_data(count, set.data() + first * shape.in.size(), false);
    convolution->backward_data(count, in_slope.data() + first * shape.in.size(), true);
    convolution->backward_weights(count, nullptr, weight_slope.data());
    const auto dense = slope.begin() + static_cast<std::ptrdiff_t>(first * shape.out().size());
    const std::vector<T> slopes(dense, dense + static_cast<std::ptrdiff_t>(count * shape.out().size()));
    in_place->backward_weights(count, slopes.data(), again.data());
  }
  INFO(backend << " " << kernels << ", in " << shape.in.height << "x" << shape.in.width << "x" << shape.in.channels
               << ", out " << shape.out_channels << ", kernel " << shape.kernel << ", stride " << shape.stride
               << ", padding " << shape.padding << ", images " << images << ", seed " << seed);
  check_close(out, right.out, tolerance);
  auto with_bias = right.out;
  for (std::size_t i = 0; i < with_bias.size(); ++i) with_bias[i] += bias[i % bias.size()];
  check_close(biased, with_bias, tolerance);
  check_close(set, right.in_slope, tolerance);
  auto added = right.in_slope;
  for (double& value : added) value += 0.25;
  check_close(in_slope, added, tolerance);
  check_close(weight_slope, right.weight_slope, tolerance);
  check_close(again, right.weight_slope, tolerance);
}

TEST_CASE("all ways to convolve agree on random shapes", "[nn]") {
  const std::uint64_t seed = 20;
  muster::random_stream random(seed);
  const auto pick = [&](std::size_t from, std::size_t to) { return from + random.below(to - from + 1); };
  for (std::uint64_t round = 0; round < 40; ++round) {
    const std::size_t kernel = pick(1, 5);
    const nn::convolution_shape shape{
        {pick(kernel, 12), pick(kernel, 12), pick(1, 20)}, pick(1, 40), kernel, pick(1, 3), random.below(kernel)};
    const std::size_t images = pick(1, 5);
    for (const auto backend : nn::convolution_names()) {
      if (backend == "direct" || backend == "winograd") {
        for (const auto kernels : nn::kernel_names()) {
          compare<float>(std::string(backend), kernels, shape, images, seed + 10 * round, 1e-5);
          compare<double>(std::string(backend), kernels, shape, images, seed + 10 * round, 1e-13);
        }
      } else {
        compare<float>(std::string(backend), {}, shape, images, seed + 10 * round, 1e-5);
      }
    }
  }
}

TEST_CASE("all ways to convolve agree on the shapes of the models", "[nn]") {
  const nn::convolution_shape shapes[] = {
      {{32, 32, 3}, 16, 3, 1, 1},  {{32, 32, 16}, 16, 3, 1, 1},
      {{32, 32, 16}, 32, 3, 2, 1}, {{16, 16, 32}, 32, 3, 1, 1},
      {{16, 16, 32}, 64, 3, 2, 1}, {{8, 8, 64}, 64, 3, 1, 1},
      {{32, 32, 16}, 32, 1, 2, 0}, {{28, 28, 1}, 32, 3, 1, 0},
      {{5, 5, 64}, 64, 3, 1, 0},   {{2, 2, 96}, 96, 3, 1, 1},
      {{33, 33, 3}, 24, 7, 2, 3},  {{6, 7, 130}, 101, 3, 1, 1}};  // weights in several parts, the last with few columns
  std::uint64_t seed = 500;
  for (const auto& shape : shapes) {
    for (const auto backend : nn::convolution_names()) {
      for (const auto kernels : nn::kernel_names())
        compare<float>(std::string(backend), kernels, shape, 3, ++seed, 1e-5);
    }
  }
}

TEST_CASE("what one thread has prepared another one computes", "[nn]") {
  const nn::convolution_shape shapes[] = {
      {{28, 28, 1}, 32, 3, 1, 0}, {{8, 8, 64}, 64, 3, 1, 1}, {{9, 7, 5}, 11, 3, 2, 1}};
  for (const auto& shape : shapes) {
    for (const auto backend : nn::convolution_names()) {
      INFO(backend);
      const auto convolution = nn::make_convolution<float>(backend, shape, nn::find_kernels<float>());
      const std::size_t images = std::min<std::size_t>(convolution->block(), 3);
      const auto weights = test::numbers<float>(1, shape.weights());
      const auto pixels = test::numbers<double>(2, shape.in.size());
      const auto slopes = test::numbers<double>(3, shape.out().size());
      const auto compute = [&] {
        std::vector<float> out(images * shape.out().size()), in(images * shape.in.size()), sums(shape.weights());
        convolution->begin(weights);
        for (std::size_t k = 0; k < images; ++k) {
          fill(convolution->input(k), pixels.data());
          fill(convolution->slope(k), slopes.data());
        }
        convolution->forward(images, nullptr, out.data());
        for (std::size_t k = 0; k < images; ++k) fill(convolution->input(k), pixels.data());
        convolution->backward_weights(images, nullptr, sums.data());
        convolution->backward_data(images, in.data(), false);
        out.insert(out.end(), in.begin(), in.end());
        out.insert(out.end(), sums.begin(), sums.end());
        return out;
      };
      const auto here = compute();
      std::vector<float> there;
      std::jthread([&] { there = compute(); }).join();
      CHECK(std::memcmp(here.data(), there.data(), here.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("an unknown way to convolve is refused", "[nn]") {
  CHECK_THROWS_AS(nn::make_convolution<float>("fourier", {}, nn::find_kernels<float>()), muster::configuration_error);
  CHECK_THROWS_AS(nn::find_kernels<float>("neon9"), muster::configuration_error);
}

}  // namespace
