#include "models.hpp"

#include <array>

#include <muster/core/error.hpp>

namespace nn {
namespace {

template <class T>
activation<T>& convolve3(network<T>& net, activation<T>& in, std::size_t channels, std::size_t stride = 1) {
  return net.convolve(in, {.channels = channels, .kernel = 3, .stride = stride, .padding = 1});
}

template <class T>
activation<T>& convolve1(network<T>& net, activation<T>& in, std::size_t channels, std::size_t stride = 1) {
  return net.convolve(in, {.channels = channels, .kernel = 1, .stride = stride});
}

/// What goes around a block of version 1.
template <class T>
activation<T>& shortcut(network<T>& net, activation<T>& in, std::size_t channels, std::size_t stride, char option) {
  if (in.shape().channels == channels && stride == 1) return in;
  if (option == 'A') return net.pad_shortcut(in, channels, stride);
  return net.normalise(convolve1(net, in, channels, stride));
}

template <class T>
activation<T>& basic_block(network<T>& net, activation<T>& in, std::size_t channels, std::size_t stride, char option) {
  auto& first = net.relu(net.normalise(convolve3(net, in, channels, stride)));
  auto& second = net.normalise(convolve3(net, first, channels));
  return net.relu(net.add(second, shortcut(net, in, channels, stride, option)));
}

/// Version 2: what goes into the block is normalised and rectified first; between stages that also goes into the
/// projection, which has a bias and no normalisation of its own.
template <class T>
activation<T>& preactivated_block(network<T>& net, activation<T>& in, std::size_t channels, std::size_t stride,
                                  char option) {
  auto& ready = net.normalised_view(in);
  auto& first = net.relu(net.normalise(convolve3(net, ready, channels, stride)));
  auto& second = convolve3(net, first, channels);
  if (in.shape().channels == channels && stride == 1) return net.add(second, in);
  if (option == 'A') return net.add(second, net.pad_shortcut(in, channels, stride));
  auto& around = net.convolve(ready, {.channels = channels, .kernel = 1, .stride = stride, .bias = true});
  return net.add(second, around);
}

template <class T>
activation<T>& bottleneck(network<T>& net, activation<T>& in, std::size_t channels, std::size_t stride) {
  auto& first = net.relu(net.normalise(convolve1(net, in, channels)));
  auto& second = net.relu(net.normalise(convolve3(net, first, channels, stride)));
  auto& third = net.normalise(convolve1(net, second, 4 * channels));
  return net.relu(net.add(third, shortcut(net, in, 4 * channels, stride, 'B')));
}

}  // namespace

template <class T>
std::unique_ptr<network<T>> make_resnet(const resnet_options& options, const execution& how) {
  const auto refuse = [](const std::string& what, const std::string& suggestion) {
    throw muster::configuration_error("there is no residual network " + what + "; " + suggestion);
  };
  if (options.depth < 8 || options.depth % 6 != 2) {
    refuse("of " + std::to_string(options.depth) + " layers (it has 6 n + 2)", "use 20, 32, 44 or 56");
  }
  if (options.version != 1 && options.version != 2) {
    refuse("of version " + std::to_string(options.version) + " (1 and 2 are known)", "use one of these");
  }
  if (options.shortcut != 'A' && options.shortcut != 'B') {
    refuse(std::string("with shortcuts '") + options.shortcut + "' (A pads, B projects)", "use one of these");
  }
  auto made = std::make_unique<network<T>>(options.input, how);
  auto& net = *made;
  auto* x = &convolve3(net, net.input(), 16);
  if (options.version == 1) x = &net.relu(net.normalise(*x));
  for (const std::size_t channels : {16, 32, 64}) {
    for (int block = 0; block < (options.depth - 2) / 6; ++block) {
      const std::size_t stride = channels > 16 && block == 0 ? 2 : 1;
      x = options.version == 1 ? &basic_block(net, *x, channels, stride, options.shortcut)
                               : &preactivated_block(net, *x, channels, stride, options.shortcut);
    }
  }
  if (options.version == 2) x = &net.relu(net.normalise(*x));
  net.finish(net.dense(net.average(*x), options.classes));
  return made;
}

template <class T>
std::unique_ptr<network<T>> make_resnet50(std::size_t classes, const extent& input, const execution& how) {
  auto made = std::make_unique<network<T>>(input, how);
  auto& net = *made;
  auto& stem = net.convolve(net.input(), {.channels = 64, .kernel = 7, .stride = 2, .padding = 3});
  auto* x = &net.max(net.relu(net.normalise(stem)), {.kernel = 3, .stride = 2, .padding = 1});
  constexpr std::array<int, 4> blocks = {3, 4, 6, 3};
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    for (int block = 0; block < blocks[stage]; ++block) {
      x = &bottleneck(net, *x, std::size_t{64} << stage, stage > 0 && block == 0 ? 2 : 1);
    }
  }
  net.finish(net.dense(net.average(*x), classes));
  return made;
}

template <class T>
std::unique_ptr<network<T>> make_vgg16(std::size_t classes, const execution& how) {
  auto made = std::make_unique<network<T>>(extent{32, 32, 3}, how);
  auto& net = *made;
  auto* x = &net.input();
  constexpr std::size_t pool = 0;
  for (const std::size_t channels : std::initializer_list<std::size_t>{
           64, 64, pool, 128, 128, pool, 256, 256, 256, pool, 512, 512, 512, pool, 512, 512, 512, pool}) {
    x = channels == pool ? &net.max(*x, {})
                         : &net.relu(net.normalise(net.convolve(
                               *x, {.channels = channels, .kernel = 3, .stride = 1, .padding = 1, .bias = true})));
  }
  for (int hidden = 0; hidden < 2; ++hidden) x = &net.relu(net.dense(net.drop(*x, 0.5), 512));
  net.finish(net.dense(*x, classes));
  return made;
}

template <class T>
std::unique_ptr<network<T>> make_cnn(cnn_variant variant, std::size_t classes, const extent& input,
                                     const execution& how) {
  auto made = std::make_unique<network<T>>(input, how);
  auto& net = *made;
  const auto convolve = [&](activation<T>& in, std::size_t channels) -> activation<T>& {
    return net.relu(net.convolve(in, {.channels = channels, .kernel = 3, .bias = true}));
  };
  const auto pooled = [&](activation<T>& in) -> activation<T>& {
    // What is normalised behind a ReLU is stored rectified: a copy, by a dropout of nothing.
    return net.max(variant == cnn_variant::batch_norm ? net.sigmoid(net.normalise(net.drop(in, 0.0))) : in, {});
  };
  auto& first = pooled(convolve(net.input(), 32));
  auto& second = pooled(convolve(first, 64));
  auto& third = convolve(variant == cnn_variant::dropout ? net.drop(second, 0.5) : second, 64);
  net.finish(net.dense(net.relu(net.dense(third, 64)), classes));
  return made;
}

template std::unique_ptr<network<float>> make_resnet<float>(const resnet_options&, const execution&);
template std::unique_ptr<network<double>> make_resnet<double>(const resnet_options&, const execution&);
template std::unique_ptr<network<float>> make_resnet50<float>(std::size_t, const extent&, const execution&);
template std::unique_ptr<network<double>> make_resnet50<double>(std::size_t, const extent&, const execution&);
template std::unique_ptr<network<float>> make_vgg16<float>(std::size_t, const execution&);
template std::unique_ptr<network<double>> make_vgg16<double>(std::size_t, const execution&);
template std::unique_ptr<network<float>> make_cnn<float>(cnn_variant, std::size_t, const extent&, const execution&);
template std::unique_ptr<network<double>> make_cnn<double>(cnn_variant, std::size_t, const extent&, const execution&);

}  // namespace nn
