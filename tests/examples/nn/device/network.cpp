// Compares a network on a device with the same network on the host: logits, loss, gradients, statistics.
#include "device/network.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <muster/core/device/memory.hpp>
#include <muster/core/error.hpp>
#include <muster/core/float16.hpp>

#include "assemble.hpp"
#include "catch.hpp"
#include "comm/transports/nccl/devices.hpp"
#include "numbers.hpp"

namespace {

struct model {
  std::string name;
  nn::extent input;
  std::size_t classes;
  std::size_t images;
  std::function<void(nn::network<float>&)> on_host;
  std::function<void(nn::device::network<float>&)> on_device;
  std::function<void(nn::device::network<muster::bfloat16>&)> in_halves;
};

template <class Assemble>
model make(std::string name, const nn::extent& input, std::size_t classes, std::size_t images, Assemble assemble) {
  return {std::move(name), input, classes, images, assemble, assemble, assemble};
}

std::vector<model> models() {
  const auto residual = [](const char* name, int version, char shortcut) {
    const nn::resnet_options options{.depth = 8, .version = version, .shortcut = shortcut, .input = {8, 8, 3}};
    return make(name, options.input, 10, 3, [=](auto& net) { nn::assemble_resnet(net, options); });
  };
  return {
      residual("version 1, projecting", 1, 'B'),
      residual("version 1, padding", 1, 'A'),
      residual("version 2, projecting", 2, 'B'),
      residual("version 2, padding", 2, 'A'),
      make("a small network", {18, 18, 1}, 10, 2, [](auto& net) { nn::assemble_cnn(net, nn::cnn_variant::plain, 10); }),
      make("dropout", {18, 18, 1}, 10, 2, [](auto& net) { nn::assemble_cnn(net, nn::cnn_variant::dropout, 10); }),
      make("sigmoids behind normalisations", {18, 18, 1}, 10, 2,
           [](auto& net) { nn::assemble_cnn(net, nn::cnn_variant::batch_norm, 10); }),
      make("pools that overlap, of odd sizes", {9, 7, 3}, 7, 3, [](auto& net) {
        auto& first = net.relu(net.normalise(
            net.convolve(net.input(), {.channels = 16, .kernel = 3, .stride = 2, .padding = 1, .bias = true})));
        auto& pooled = net.max(first, {.kernel = 3, .stride = 2, .padding = 1});
        net.finish(net.dense(pooled, 7));
      })};
}

double distance(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double off = 0, size = 1e-30;
  for (std::size_t k = 0; k < a.size(); ++k) {
    const double by = static_cast<double>(a[k]) - static_cast<double>(b[k]);
    off += by * by;
    size += static_cast<double>(b[k]) * static_cast<double>(b[k]);
  }
  return std::sqrt(off / size);
}

std::span<const muster::sample_id> samples(const model& of) {
  static constexpr std::array<muster::sample_id, 3> all = {7, 1, 9};
  return std::span(all).first(of.images);
}

struct outcome {
  nn::totals sums;
  std::vector<float> gradients, statistics, logits;
};

/// Runs two training passes and a prediction of half of the images.
outcome on_host(const model& of, muster::arena& arena, std::span<const float> images, std::span<const float> labels) {
  nn::network<float> net(of.input);
  of.on_host(net);
  net.bind(arena);
  outcome result;
  std::vector<float> slopes(of.images * of.classes);
  for (int pass = 0; pass < 2; ++pass) {
    const nn::pass now{.images = of.images, .samples = samples(of), .key = 5};
    const auto logits = net.forward(images, now);
    result.sums = nn::softmax_cross_entropy<float>(logits, labels, of.classes, 0.5, slopes);
    net.backward(slopes, now);
  }
  const std::size_t half = of.images / 2;
  const auto logits = net.forward(images.first(half * of.input.size()), {.images = half, .training = false});
  result.logits.assign(logits.begin(), logits.end());
  result.statistics.assign(net.statistics().begin(), net.statistics().end());
  for (std::size_t k = 0; k < arena.shapes().size(); ++k) {
    const auto gradient = arena.gradient(k);
    result.gradients.insert(result.gradients.end(), gradient.begin(), gradient.end());
  }
  return result;
}

template <class A>
outcome on_device(const model& of, const std::function<void(nn::device::network<A>&)>& assemble,
                  const muster::arena& start, std::span<const float> images, std::span<const float> labels,
                  bool listens) {
  const muster::device_stream stream;
  muster::device_arena arena(start.shapes(), stream);
  arena.upload(start, muster::deadline_after(devices::patience));
  nn::network<float> host(of.input);
  of.on_host(host);
  nn::device::network<A> net(of.input, nn::device::multiplication::float32, stream);
  assemble(net);
  net.bind(arena, host.statistics());
  outcome result;
  std::vector<int> calls(start.shapes().size());
  nn::pass now{.images = of.images, .samples = samples(of), .key = 5};
  if (listens) now.ready = [&](std::size_t parameter) { ++calls[parameter]; };
  for (int pass = 0; pass < 2; ++pass) {
    net.train(images, labels, 0.5, now);
    result.sums = net.finish_training();
  }
  if (listens) CHECK(std::ranges::all_of(calls, [](int times) { return times == 2; }));
  const std::size_t half = of.images / 2;
  const auto logits = net.predict(images.first(half * of.input.size()), half);
  result.logits.assign(logits.begin(), logits.end());
  result.statistics.assign(host.statistics().begin(), host.statistics().end());
  for (std::size_t k = 0; k < arena.shapes().size(); ++k) {
    const auto gradient = devices::on_host(arena.gradient(k), stream);
    result.gradients.insert(result.gradients.end(), gradient.begin(), gradient.end());
  }
  return result;
}

struct host_memory {
  template <class T>
  muster::buffer<T> allocate(std::size_t size) {
    return muster::buffer<T>(size);
  }
};

/// A network of the host with its own arena, in its initial state.
struct started {
  host_memory memory{};
  nn::network<float> net;
  muster::arena arena;

  started(const model& of, std::uint64_t seed) : net(of.input), arena(memory, (of.on_host(net), net.shapes())) {
    net.bind(arena);
    net.initialise(seed);
  }
};

void compare(const outcome& device, const outcome& host, double within) {
  CAPTURE(within, device.sums.loss, host.sums.loss, distance(device.gradients, host.gradients));
  CHECK(std::abs(device.sums.loss - host.sums.loss) <= within * std::abs(host.sums.loss));
  CHECK(device.sums.images == host.sums.images);
  CHECK(distance(device.gradients, host.gradients) <= within);
  CHECK(distance(device.statistics, host.statistics) <= within);
  CHECK(distance(device.logits, host.logits) <= within);
}

}  // namespace

TEST_CASE("a network on a device is the host's: loss, gradients, statistics, predictions", "[nn]") {
  MUSTER_NEEDS_DEVICE();
  for (const auto& each : models()) {
    CAPTURE(each.name);
    started at(each, 3);
    const auto images = test::numbers<float>(1, each.images * each.input.size(), 2);
    std::vector<float> labels(each.images);
    for (std::size_t k = 0; k < labels.size(); ++k) labels[k] = static_cast<float>(k * 5 % each.classes);
    const auto expected = on_host(each, at.arena, images, labels);
    const auto found = on_device<float>(each, each.on_device, at.arena, images, labels, false);
    compare(found, expected, 2e-5);
    CHECK(found.sums.top1 == expected.sums.top1);
    CHECK(found.sums.top5 == expected.sums.top5);
    // With 16 bits, the error is each activation's rounding error.
    compare(on_device<muster::bfloat16>(each, each.in_halves, at.arena, images, labels, true), expected, 0.25);
  }
}

TEST_CASE("a network on a device gives the same bits each time", "[nn]") {
  MUSTER_NEEDS_DEVICE();
  const auto each = models()[0];
  const started at(each, 4);
  const auto images = test::numbers<float>(2, each.images * each.input.size(), 2);
  const std::vector<float> labels(each.images, 3.0f);
  const auto first = on_device<float>(each, each.on_device, at.arena, images, labels, false);
  const auto again = on_device<float>(each, each.on_device, at.arena, images, labels, true);
  CHECK(first.gradients == again.gradients);
  CHECK(first.statistics == again.statistics);
  CHECK(first.logits == again.logits);
}

TEST_CASE("a network on a device refuses labels that are no classes, and shapes that matrix units do not take",
          "[nn]") {
  MUSTER_NEEDS_DEVICE();
  const auto each = models()[4];
  const muster::device_stream stream;
  nn::network<float> host(each.input);
  each.on_host(host);
  muster::device_arena arena(host.shapes(), stream);
  nn::device::network<float> net(each.input, nn::device::multiplication::float32, stream);
  each.on_device(net);
  net.bind(arena, host.statistics());
  const std::vector<float> images(each.input.size()), label(1, 10.0f);
  CHECK_THROWS_AS(net.train(images, label, 1, {.images = 1}), muster::data_error);
  nn::device::network<float> other({28, 28, 1}, nn::device::multiplication::float32, stream);
  CHECK_THROWS_AS(other.convolve(other.input(), {.channels = 6, .kernel = 3}), muster::configuration_error);
}
