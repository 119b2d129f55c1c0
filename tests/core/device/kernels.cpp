// Operations on devices compared to the host, bit by bit.
#include <muster/core/device/kernels.hpp>

#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include <muster/core/update.hpp>

#include "catch.hpp"
#include "comm/transports/nccl/devices.hpp"
#include "same_bits.hpp"

using muster::device_buffer;
using muster::device_span;

namespace {

constexpr std::size_t sizes[] = {0, 1, 2, 31, 32, 33, 1000, 4096, 100003};

std::vector<float> numbers(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> result(size);
  for (float& value : result) value = normal(random);
  return result;
}

/// Returns numbers that include all kinds of floats: NaNs, infinities, subnormal numbers, zeros of both signs, and many
/// equal numbers.
std::vector<float> odd_numbers(std::size_t size, unsigned seed) {
  auto result = numbers(size, seed);
  std::mt19937 random(seed + 1);
  constexpr float odd[] = {0.0f,
                           -0.0f,
                           1.0f,
                           -1.0f,
                           65504.0f,
                           65520.0f,
                           1e-8f,
                           6.1e-5f,
                           -3e-40f,
                           1e38f,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()};
  for (float& value : result) {
    if (random() % 3 == 0) value = odd[random() % std::size(odd)];
  }
  return result;
}

using test::same;

}  // namespace

TEST_CASE("the optimizers' steps on a device are those of the host, to the bit") {
  MUSTER_NEEDS_DEVICE();
  const muster::device_stream stream;
  for (const std::size_t size : sizes) {
    CAPTURE(size);
    for (const bool nesterov : {false, true}) {
      for (const float momentum : {0.0f, 0.9f}) {
        auto parameters = numbers(size, 1), velocities = numbers(size, 2);
        auto on_device = devices::on_device(parameters, stream), moving = devices::on_device(velocities, stream);
        for (unsigned step = 0; step < 3; ++step) {
          const auto gradients = numbers(size, 3 + step);
          const muster::sgd_step<float> optimizer_step{
              .learning_rate = 0.1f, .momentum = momentum, .nesterov = nesterov, .decay = 1e-4f};
          const auto gradients_on_device = devices::on_device(gradients, stream);
          muster::update(optimizer_step, parameters, gradients, {velocities});
          muster::update(optimizer_step, on_device.span(), gradients_on_device.span(), {moving.span()}, stream);
          CHECK(same(devices::on_host(on_device.span(), stream), parameters));
          CHECK(same(devices::on_host(moving.span(), stream), velocities));
        }
      }
    }
    for (const bool decoupled : {false, true}) {
      auto parameters = numbers(size, 1), means = numbers(size, 2), squares = std::vector<float>(size, 0.25f);
      auto on_device = devices::on_device(parameters, stream), first = devices::on_device(means, stream),
           second = devices::on_device(squares, stream);
      for (unsigned step = 1; step < 4; ++step) {
        const auto gradients = numbers(size, 3 + step);
        const muster::adam_step<float> optimizer_step{
            .learning_rate = 1e-2, .decay = 1e-2, .decoupled = decoupled, .count = step};
        const auto gradients_on_device = devices::on_device(gradients, stream);
        muster::update(optimizer_step, parameters, gradients, {means, squares});
        muster::update(optimizer_step, on_device.span(), gradients_on_device.span(), {first.span(), second.span()},
                       stream);
        CHECK(same(devices::on_host(on_device.span(), stream), parameters));
        CHECK(same(devices::on_host(second.span(), stream), squares));
      }
    }
  }
}

TEST_CASE("sums of squares on a device are those of the host") {
  MUSTER_NEEDS_DEVICE();
  const muster::device_stream stream;
  // The bits are the same on any device. The order of additions determines these numbers, so a change of the order
  // changes the numbers.
  const std::pair<std::size_t, double> sums_of[] = {{0, 0},
                                                    {1, 0x1.7d9cf84c2c64p-8},
                                                    {255, 0x1.4e7c3beaa1992p+6},
                                                    {256, 0x1.45133d8b40393p+6},
                                                    {257, 0x1.6036d9a60262ep+6},
                                                    {2048, 0x1.5334f50c23d36p+9},
                                                    {2049, 0x1.56f99ec863ff9p+9},
                                                    {300001, 0x1.86f41b1129f8ep+16},
                                                    {2097152, 0x1.5539738f4ecfcp+19},
                                                    {2097153, 0x1.55c328e61ca1fp+19}};
  std::mt19937 random(7);
  for (const auto& [size, bits] : sums_of) {
    CAPTURE(size);
    std::vector<float> values(size);
    for (float& value : values) value = static_cast<float>(random()) * 0x1p-32f;
    const double expected =
        std::inner_product(values.begin(), values.end(), values.begin(), 0.0, std::plus<>(),
                           [](float a, float b) { return static_cast<double>(a) * static_cast<double>(b); });
    const auto values_on_device = devices::on_device(values, stream);
    device_buffer<double> sums(muster::sum_scratch(size));
    muster::sum_of_squares(values_on_device.span(), sums.span(), stream);
    const double sum = devices::on_host(sums.span().first(1), stream)[0];
    CHECK(sum == Approx(expected).epsilon(1e-12));
    CHECK(sum == bits);
    CHECK(muster::sum_scratch(size) <=
          muster::sum_scratch(size + 1));  // so that scratch for the whole suffices for a part
  }
}

TEST_CASE("a device's loops take arrays that begin anywhere, and leave what is around them alone") {
  MUSTER_NEEDS_DEVICE();
  const muster::device_stream stream;
  for (const std::size_t size : sizes) {
    for (std::size_t first = 0; first < 5; ++first) {
      CAPTURE(size, first);
      auto values = numbers(size + 9, 5);
      const auto gradients = numbers(size + 9, 6);
      auto on_device = devices::on_device(values, stream);
      const auto gradients_on_device = devices::on_device(gradients, stream);
      const muster::sgd_step<float> optimizer_step{.learning_rate = 0.1f};
      muster::update(optimizer_step, on_device.span().subspan(first, size), gradients_on_device.span().subspan(4, size),
                     {}, stream);
      muster::update(optimizer_step, std::span(values).subspan(first, size), std::span(gradients).subspan(4, size));
      CHECK(same(devices::on_host(on_device.span(), stream), values));

      device_buffer<muster::float16> halves(size + 9);
      muster::convert(gradients_on_device.span().subspan(first, size), halves.span().subspan(first, size), stream);
      std::vector<muster::float16> expected(size + 9);
      for (std::size_t i = first; i < first + size; ++i) expected[i] = gradients[i];
      CHECK(same(devices::on_host(halves.span(), stream), expected));
    }
  }
}

TEMPLATE_TEST_CASE("16-bit floats on a device are those of the host", "", muster::float16, muster::bfloat16) {
  using Half = TestType;
  MUSTER_NEEDS_DEVICE();
  const muster::device_stream stream;
  for (const std::size_t size : sizes) {
    CAPTURE(size);
    const auto values = odd_numbers(size, 11);
    const auto values_on_device = devices::on_device(values, stream);
    device_buffer<Half> halves(size);
    muster::convert(values_on_device.span(), halves.span(), stream);
    std::vector<Half> expected;
    for (const float value : values) expected.push_back(Half(value));
    CHECK(same(devices::on_host(halves.span(), stream), expected));

    device_buffer<float> back(size);
    muster::convert(device_span<const Half>(halves.span()), back.span(), stream);
    std::vector<float> floats;
    for (const Half half : expected) floats.push_back(static_cast<float>(half));
    CHECK(same(devices::on_host(back.span(), stream), floats));
  }
}
