// The models of the examples, layer by layer, for any type with the functions of nn::network, on the host or on a
// device.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>

#include <muster/core/error.hpp>

#include "models.hpp"

namespace nn {
namespace detail {

template <class Net, class Activation>
Activation& convolve3(Net& net, Activation& in, std::size_t channels, std::size_t stride = 1) {
  return net.convolve(in, {.channels = channels, .kernel = 3, .stride = stride, .padding = 1});
}

template <class Net, class Activation>
Activation& convolve1(Net& net, Activation& in, std::size_t channels, std::size_t stride = 1) {
  return net.convolve(in, {.channels = channels, .kernel = 1, .stride = stride});
}

/// Returns the shortcut around a block of version 1.
template <class Net, class Activation>
Activation& shortcut(Net& net, Activation& in, std::size_t channels, std::size_t stride, char option) {
  if (in.shape().channels == channels && stride == 1) return in;
  if (option == 'A') return net.pad_shortcut(in, channels, stride);
  return net.normalise(convolve1(net, in, channels, stride));
}

template <class Net, class Activation>
Activation& basic_block(Net& net, Activation& in, std::size_t channels, std::size_t stride, char option) {
  auto& first = net.relu(net.normalise(convolve3(net, in, channels, stride)));
  auto& second = net.normalise(convolve3(net, first, channels));
  return net.relu(net.add(second, shortcut(net, in, channels, stride, option)));
}

/// Builds a block of version 2. The input of the block is normalised and rectified first. Between stages this
/// normalised input also feeds the projection, which has a bias and no normalisation.
template <class Net, class Activation>
Activation& preactivated_block(Net& net, Activation& in, std::size_t channels, std::size_t stride, char option) {
  auto& ready = net.normalised_view(in);
  auto& first = net.relu(net.normalise(convolve3(net, ready, channels, stride)));
  auto& second = convolve3(net, first, channels);
  if (in.shape().channels == channels && stride == 1) return net.add(second, in);
  if (option == 'A') return net.add(second, net.pad_shortcut(in, channels, stride));
  auto& around = net.convolve(ready, {.channels = channels, .kernel = 1, .stride = stride, .bias = true});
  return net.add(second, around);
}

template <class Net, class Activation>
Activation& bottleneck(Net& net, Activation& in, std::size_t channels, std::size_t stride) {
  auto& first = net.relu(net.normalise(convolve1(net, in, channels)));
  auto& second = net.relu(net.normalise(convolve3(net, first, channels, stride)));
  auto& third = net.normalise(convolve1(net, second, 4 * channels));
  return net.relu(net.add(third, shortcut(net, in, 4 * channels, stride, 'B')));
}

}  // namespace detail

template <class Net>
void assemble_resnet(Net& net, const resnet_options& options) {
  const auto refuse = [](const std::string& description, const std::string& suggestion) {
    throw muster::configuration_error("there is no residual network " + description + "; " + suggestion);
  };
  if (options.depth < 8 || options.depth % 6 != 2) {
    refuse("of " + std::to_string(options.depth) + " layers (it has 6 n + 2)", "use 20, 32, 44 or 56");
  }
  if (options.version != 1 && options.version != 2) {
    refuse("of version " + std::to_string(options.version) + " (1 and 2 are known)", "use a known version");
  }
  if (options.shortcut != 'A' && options.shortcut != 'B') {
    refuse(std::string("with shortcuts '") + options.shortcut + "' (A pads, B projects)", "use A or B");
  }
  auto* x = &detail::convolve3(net, net.input(), 16);
  if (options.version == 1) x = &net.relu(net.normalise(*x));
  for (const std::size_t channels : {16, 32, 64}) {
    for (int block = 0; block < (options.depth - 2) / 6; ++block) {
      const std::size_t stride = channels > 16 && block == 0 ? 2 : 1;
      x = options.version == 1 ? &detail::basic_block(net, *x, channels, stride, options.shortcut)
                               : &detail::preactivated_block(net, *x, channels, stride, options.shortcut);
    }
  }
  if (options.version == 2) x = &net.relu(net.normalise(*x));
  net.finish(net.dense(net.average(*x), options.classes));
}

template <class Net>
void assemble_resnet50(Net& net, std::size_t classes) {
  auto& stem = net.convolve(net.input(), {.channels = 64, .kernel = 7, .stride = 2, .padding = 3});
  auto* x = &net.max(net.relu(net.normalise(stem)), {.kernel = 3, .stride = 2, .padding = 1});
  constexpr std::array<int, 4> blocks = {3, 4, 6, 3};
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    for (int block = 0; block < blocks[stage]; ++block) {
      x = &detail::bottleneck(net, *x, std::size_t{64} << stage, stage > 0 && block == 0 ? 2 : 1);
    }
  }
  net.finish(net.dense(net.average(*x), classes));
}

template <class Net>
void assemble_vgg16(Net& net, std::size_t classes) {
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
}

template <class Net>
void assemble_cnn(Net& net, cnn_variant variant, std::size_t classes) {
  const auto convolve = [&](auto& in, std::size_t channels) -> auto& {
    return net.relu(net.convolve(in, {.channels = channels, .kernel = 3, .bias = true}));
  };
  const auto pooled = [&](auto& in) -> auto& {
    // Batch normalisation after a ReLU needs rectified values in memory. A dropout with rate zero makes this copy.
    return net.max(variant == cnn_variant::batch_norm ? net.sigmoid(net.normalise(net.drop(in, 0.0))) : in, {});
  };
  auto& first = pooled(convolve(net.input(), 32));
  auto& second = pooled(convolve(first, 64));
  auto& third = convolve(variant == cnn_variant::dropout ? net.drop(second, 0.5) : second, 64);
  net.finish(net.dense(net.relu(net.dense(third, 64)), classes));
}

}  // namespace nn
