// Compares every layer's backward pass with finite differences, in double, by the same code that trains in float.
#include <cmath>
#include <functional>
#include <string>

#include <muster/core/random.hpp>

#include "catch.hpp"
#include "convolution_winograd.hpp"
#include "loss.hpp"
#include "models.hpp"
#include "numbers.hpp"

namespace {

using network = nn::network<double>;
using activation = nn::activation<double>;

/// Compares the gradients of some elements of every parameter with differences of the loss.
void check_gradients(network& net, std::size_t images, std::uint64_t seed, std::size_t probes = 6) {
  test::parameter_memory<double> memory(net);
  for (std::size_t i = 0; i < memory.values.size(); ++i) {
    const auto& shape = net.parameters()[i];
    const bool scales = shape.initialisation == nn::start::ones;
    const double spread = scales ? 0.5 : shape.fan > 1 ? std::sqrt(24 / shape.fan) : 0.5;
    const auto values = test::numbers<double>(seed + i, memory.values[i].size(), spread, scales ? 1 : 0);
    std::copy(values.begin(), values.end(), memory.values[i].begin());  // the network has a view into this memory
  }
  const auto pixels = test::numbers<double>(seed + 1000, images * net.input_shape().size(), 2);
  std::vector<float> labels(images);
  std::vector<muster::sample_id> samples(images);
  muster::random_stream random(seed);
  for (std::size_t i = 0; i < images; ++i) {
    labels[i] = static_cast<float>(random.below(net.classes()));
    samples[i] = static_cast<muster::sample_id>(random.below(1000));
  }
  const nn::pass now{.images = images, .samples = samples, .key = seed};
  std::vector<double> slopes(images * net.classes());
  const auto loss = [&] {
    const auto logits = net.forward(pixels, now);
    return nn::softmax_cross_entropy<double>(logits, labels, net.classes(), 1, slopes).loss;
  };
  loss();
  memory.clear_gradients();
  net.backward(slopes, now);
  for (std::size_t i = 0; i < memory.values.size(); ++i) {
    double largest = 1e-3;
    for (const double slope : memory.gradients[i]) largest = std::max(largest, std::abs(slope));
    for (std::size_t probe = 0; probe < probes; ++probe) {
      const std::size_t k = random.below(memory.values[i].size());
      const double before = memory.values[i][k];
      constexpr double step = 1e-6;
      memory.values[i][k] = before + step;
      const double above = loss();
      memory.values[i][k] = before - step;
      const double below = loss();
      memory.values[i][k] = before;
      INFO("seed " << seed << ", " << net.parameters()[i].name << "[" << k << "] of " << memory.values[i].size());
      CHECK(memory.gradients[i][k] == Approx((above - below) / (2 * step)).margin(2e-5 * largest).epsilon(1e-5));
    }
  }
}

// Checks a layer in a network whose first layer has parameters, so that the layer under test must compute the gradient
// of its input.
void check_layer(const nn::extent& input, std::size_t channels, std::uint64_t seed,
                 const std::function<activation&(network&, activation&)>& layer, const nn::execution& execution = {}) {
  network net(input, execution);
  auto& first = net.convolve(net.input(), {.channels = channels, .kernel = 3, .padding = 1, .bias = true});
  net.finish(net.dense(layer(net, first), 3));
  check_gradients(net, 3, seed);
}

TEST_CASE("the gradients of convolutions are those of differences", "[nn]") {
  muster::random_stream random(11);
  for (const std::string backend : {"direct", "eigen"}) {
    for (const auto kernels : nn::kernel_names()) {
      for (int round = 0; round < 6; ++round) {
        const auto pick = [&](std::size_t from, std::size_t to) { return from + random.below(to - from + 1); };
        const std::size_t kernel = pick(1, 4), stride = pick(1, 3), padding = random.below(kernel);
        const std::size_t channels = pick(1, 19);
        const nn::extent input{pick(4, 9), pick(4, 9), pick(1, 5)};
        INFO(backend << " " << kernels << " kernel " << kernel << " stride " << stride << " padding " << padding);
        check_layer(input, pick(1, 9), 100 + static_cast<std::uint64_t>(round),
                    [&](network& net, activation& in) -> activation& {
                      return net.convolve(
                          in, {.channels = channels, .kernel = kernel, .stride = stride, .padding = padding});
                    },
                    {.backend = backend, .kernels = std::string(kernels)});
      }
    }
  }
}

TEST_CASE("the gradients of convolutions by Winograd's tiles are those of differences", "[nn]") {
  for (const std::size_t padding : {0, 1, 2}) {
    REQUIRE(nn::winograd_convolution<double>::pays({{10, 11, 32}, 33, 3, 1, padding}));
    INFO("padding " << padding);
    check_layer({10, 11, 2}, 32, 300 + padding, [&](network& net, activation& in) -> activation& {
      return net.relu(net.convolve(in, {.channels = 33, .kernel = 3, .padding = padding, .bias = true}));
    });
  }
}

TEST_CASE("the gradients of batch normalisation and ReLU are those of differences", "[nn]") {
  for (const auto kernels : nn::kernel_names()) {
    for (const std::size_t channels : {1, 7, 16, 35}) {
      const nn::execution execution{.backend = "direct", .kernels = std::string(kernels)};
      const auto normalised = [](network& net, activation& in) -> activation& { return net.normalise(in); };
      const auto both = [](network& net, activation& in) -> activation& { return net.relu(net.normalise(in)); };
      const auto rectified = [](network& net, activation& in) -> activation& { return net.relu(in); };
      check_layer({4, 5, 2}, channels, 1, normalised, execution);
      check_layer({4, 5, 2}, channels, 2, both, execution);
      check_layer({4, 5, 2}, channels, 3, rectified, execution);
    }
  }
}

TEST_CASE("the gradients of pooling, dropout, sigmoids and dense layers are those of differences", "[nn]") {
  check_layer({6, 7, 2}, 5, 1, [](network& net, activation& in) -> activation& { return net.max(in, {}); });
  check_layer({6, 7, 2}, 5, 2, [](network& net, activation& in) -> activation& {
    return net.max(net.relu(net.normalise(in)), {.kernel = 3, .stride = 2, .padding = 1});
  });
  check_layer({6, 7, 2}, 5, 3, [](network& net, activation& in) -> activation& { return net.average(in); });
  check_layer({6, 7, 2}, 5, 4, [](network& net, activation& in) -> activation& { return net.drop(in, 0.4); });
  check_layer({6, 7, 2}, 5, 6, [](network& net, activation& in) -> activation& { return net.sigmoid(in); });
  check_layer({6, 7, 2}, 5, 7, [](network& net, activation& in) -> activation& {
    return net.max(net.sigmoid(net.normalise(net.drop(net.relu(in), 0.0))), {});
  });
  check_layer({6, 7, 2}, 5, 5, [](network& net, activation& in) -> activation& { return net.relu(net.dense(in, 11)); });
}

TEST_CASE("the gradients of shortcuts are those of differences", "[nn]") {
  // A block around the layer under test, whose shortcut reads the same activation.
  const auto block = [](network& net, activation& in) -> activation& {
    auto& inner = net.normalise(
        net.convolve(net.relu(net.normalise(net.convolve(in, {.channels = 5, .kernel = 3, .padding = 1}))),
                     {.channels = in.shape().channels, .kernel = 3, .padding = 1}));
    return net.relu(net.add(inner, in));
  };
  check_layer({5, 5, 2}, 4, 1, block);
  check_layer({5, 5, 2}, 4, 2, [&](network& net, activation& in) -> activation& {
    return block(net, block(net, net.relu(net.normalise(in))));
  });
  check_layer({5, 6, 2}, 4, 3, [](network& net, activation& in) -> activation& {
    auto& inner = net.convolve(in, {.channels = 8, .kernel = 3, .stride = 2, .padding = 1});
    return net.add(inner, net.pad_shortcut(in, 8, 2));
  });
  // Both terms are rectified before the addition, so that they cannot share the sum's gradient.
  check_layer({5, 6, 2}, 4, 4, [](network& net, activation& in) -> activation& {
    auto& left = net.relu(net.convolve(in, {.channels = 3, .kernel = 1}));
    auto& right = net.relu(net.normalise(net.convolve(in, {.channels = 3, .kernel = 1})));
    return net.relu(net.add(left, right));
  });
  check_layer({5, 6, 2}, 4, 5, [](network& net, activation& in) -> activation& {
    auto& view = net.normalised_view(in);
    return net.add(net.convolve(view, {.channels = 4, .kernel = 3, .padding = 1}), in);
  });
}

TEST_CASE("the gradients of layers that are normalised behind are those of differences", "[nn]") {
  const auto finish = [](network& net, activation& out) -> activation& { return net.relu(net.normalise(out)); };
  check_layer({6, 6, 2}, 4, 1, [&](network& net, activation& in) -> activation& {
    return finish(net, net.add(net.convolve(in, {.channels = 4, .kernel = 3, .padding = 1}), in));
  });
  check_layer({6, 6, 2}, 4, 2,
              [&](network& net, activation& in) -> activation& { return finish(net, net.pad_shortcut(in, 7, 2)); });
  check_layer({6, 6, 2}, 4, 3,
              [&](network& net, activation& in) -> activation& { return finish(net, net.max(in, {})); });
  check_layer({6, 6, 2}, 4, 4,
              [&](network& net, activation& in) -> activation& { return finish(net, net.drop(in, 0.3)); });
  check_layer({6, 6, 2}, 4, 5,
              [&](network& net, activation& in) -> activation& { return finish(net, net.average(in)); });
  check_layer({6, 6, 2}, 4, 6,
              [&](network& net, activation& in) -> activation& { return finish(net, net.dense(in, 9)); });
}

TEST_CASE("the gradients of whole networks are those of differences", "[nn]") {
  for (const int version : {1, 2}) {
    for (const char shortcut : {'A', 'B'}) {
      INFO("version " << version << " shortcut " << shortcut);
      const auto net = nn::make_resnet<double>(
          {.depth = 8, .version = version, .shortcut = shortcut, .classes = 4, .input = {8, 8, 3}});
      check_gradients(*net, 3, 7, 3);
    }
  }
  for (const auto variant : {nn::cnn_variant::plain, nn::cnn_variant::dropout, nn::cnn_variant::batch_norm}) {
    const auto net = nn::make_cnn<double>(variant, 5, {20, 18, 1});
    check_gradients(*net, 2, 3, 3);
  }
}

}  // namespace
