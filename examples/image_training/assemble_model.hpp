// The layers of a model by its name, for a network on the host or on a device.
#pragma once

#include <algorithm>
#include <string_view>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

#include "assemble.hpp"
#include "saved_model.hpp"

namespace images {
namespace detail {

/// Parses a name such as "resnet20-v1-B"; returns false if the name does not have this form.
inline bool read_residual(const model_description& description, nn::resnet_options& options) {
  options.classes = description.classes;
  options.input = description.input;
  const std::string_view rest = std::string_view(description.name).substr(6);
  const auto end = std::min(rest.find('-'), rest.size());
  const auto depth = muster::parse_number<int>(rest.substr(0, end));
  const auto kind = rest.substr(end);
  if (!depth || kind.size() != 5 || !kind.starts_with("-v") || kind[3] != '-') return false;
  options.depth = *depth;
  options.version = kind[2] - '0';
  options.shortcut = kind[4];
  return true;
}

}  // namespace detail

/// Builds the layers of an empty network. Throws muster::configuration_error for an unknown name.
template <class Net>
void assemble_model(Net& net, const model_description& description) {
  if (description.name == "resnet50") return nn::assemble_resnet50(net, description.classes);
  if (description.name.starts_with("resnet")) {
    nn::resnet_options options;
    if (detail::read_residual(description, options)) return nn::assemble_resnet(net, options);
  }
  if (description.name == "vgg16") {
    if (description.input != nn::extent{32, 32, 3}) {
      throw muster::configuration_error(
          "VGG16 of this form requires images of 32 x 32 pixels and 3 colours (the "
          "data has others); use a residual network or the small one");
    }
    return nn::assemble_vgg16(net, description.classes);
  }
  using enum nn::cnn_variant;
  if (description.name == "cnn") return nn::assemble_cnn(net, plain, description.classes);
  if (description.name == "cnn-dropout") return nn::assemble_cnn(net, dropout, description.classes);
  if (description.name == "cnn-batch-norm") return nn::assemble_cnn(net, batch_norm, description.classes);
  throw muster::configuration_error("there is no model '" + description.name +
                                    "' (known: resnetDEPTH-v1-A and similar names, resnet50, vgg16, cnn, cnn-dropout, "
                                    "cnn-batch-norm); use a known name");
}

}  // namespace images
