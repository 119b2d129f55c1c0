// A trained model in a file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <muster/data/image_steps.hpp>

#include "models.hpp"

namespace images {

/// What a model is, so that it can be made again: "resnet20-v1-B", "resnet56-v2-A", "resnet50", "vgg16", "cnn",
/// "cnn-dropout" or "cnn-batch-norm".
struct model_description {
  std::string name;
  nn::extent input;
  std::size_t classes = 10;
  muster::prepare preparation{};           ///< what makes a sample of an image
  std::vector<std::string> class_names{};  ///< in the order of their numbers; empty: not known
};

/// Throws muster::configuration_error for a name that is none.
[[nodiscard]] std::unique_ptr<nn::network<float>> make_model(const model_description& what,
                                                             const nn::execution& how = {});

/// Writes a line of JSON (the description, preparation included, and how many numbers follow), then the parameters in
/// the network's order and the running statistics as 32-bit floats of this machine, then their CRC-32C. Whole or not at
/// all. Throws muster::configuration_error when it cannot be written.
void save_model(const std::string& path, const model_description& what, nn::network<float>& net);

/// A model with memory of its own.
struct loaded_model {
  model_description what;
  std::unique_ptr<nn::network<float>> net;
  std::vector<float> parameters;
};
/// Throws muster::data_error for a file that is no model, or damaged.
[[nodiscard]] loaded_model load_model(const std::string& path, const nn::execution& how = {});

}  // namespace images
