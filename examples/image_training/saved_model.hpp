// A trained model in a file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <muster/data/image_steps.hpp>

#include "../model_file.hpp"
#include "models.hpp"

namespace images {

/// The description from which a model can be built again: "resnet20-v1-B", "resnet56-v2-A", "resnet50", "vgg16", "cnn",
/// "cnn-dropout" or "cnn-batch-norm".
struct model_description {
  std::string name;
  nn::extent input;
  std::size_t classes = 10;
  muster::prepare preparation{};           ///< Conversion from an image to a sample.
  std::vector<std::string> class_names{};  ///< In the order of their numbers; empty: not known.
};

/// Returns an untrained model. Throws muster::configuration_error for an unknown name.
[[nodiscard]] std::unique_ptr<nn::network<float>> make_model(const model_description& description,
                                                             const nn::execution& execution = {});

/// Returns views of the parameters of a network, in the network's order, then of the mean and the variance of each
/// batch normalisation.
[[nodiscard]] std::vector<examples::model_tensor> tensors_of(nn::network<float>& net);

/// Writes a line of JSON (the description, preparation included, and the counts of the numbers that follow), then the
/// parameters in the network's order and the running statistics as 32-bit floats in this machine's format, then their
/// CRC-32C; or a safetensors file, if the path ends with ".safetensors". The file is written completely or not at all.
/// Throws muster::configuration_error when it cannot be written.
void save_model(const std::string& path, const model_description& description, nn::network<float>& net);

/// A model that owns its memory.
struct loaded_model {
  model_description description;
  std::unique_ptr<nn::network<float>> net;
  std::vector<float> parameters;
};
/// Returns the model of a file. Throws muster::data_error for a file that is no model, or damaged.
[[nodiscard]] loaded_model load_model(const std::string& path, const nn::execution& execution = {});

}  // namespace images
