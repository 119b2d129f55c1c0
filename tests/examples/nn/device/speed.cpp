// Measures a training step of ResNet-20 on a device. The time is printed and not checked.
#include <algorithm>
#include <cstdio>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/core/device/memory.hpp>
#include <muster/core/float16.hpp>

#include "assemble.hpp"
#include "catch.hpp"
#include "comm/transports/nccl/devices.hpp"
#include "device/network.hpp"
#include "numbers.hpp"

namespace {

template <class A>
void measure(const char* name, nn::device::multiplication precision) {
  constexpr std::size_t images = 128;
  const nn::resnet_options options{};
  nn::network<float> host(options.input);
  nn::assemble_resnet(host, options);
  const muster::device_stream stream;
  muster::device_arena arena(host.shapes(), stream);
  nn::device::network<A> net(options.input, precision, stream);
  nn::assemble_resnet(net, options);
  net.bind(arena, host.statistics());
  muster::device_sgd optimizer(arena, {.momentum = 0.9f});
  const auto pixels = test::numbers<float>(1, images * options.input.size(), 2);
  std::vector<float> labels(images);
  for (std::size_t k = 0; k < images; ++k) labels[k] = static_cast<float>(k % 10);
  std::vector<double> seconds;
  for (int step = 0; step < 220; ++step) {
    const auto begin = muster::clock::now();
    muster::clear(arena.gradients(), stream);
    net.train(pixels, labels, 1.0 / images, {.images = images});
    optimizer.apply(0.01);
    const auto sums = net.finish_training();
    REQUIRE(sums.images == images);
    if (step >= 20) seconds.push_back(muster::seconds_since(begin));
  }
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  std::printf("ResNet-20, batch 128, %s: %.3f ms a step (%.3f .. %.3f), %.0f images/s\n", name, median * 1e3,
              seconds.front() * 1e3, seconds.back() * 1e3, images / median);
}

}  // namespace

TEST_CASE("the time of a training step of ResNet-20 is printed", "[nn][speed]") {
  MUSTER_NEEDS_DEVICE();
  measure<float>("float32", nn::device::multiplication::float32);
  measure<float>("tf32", nn::device::multiplication::tf32);
  measure<muster::bfloat16>("bfloat16", nn::device::multiplication::tf32);
}
