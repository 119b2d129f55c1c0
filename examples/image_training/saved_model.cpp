#include "saved_model.hpp"

#include <algorithm>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

#include "../model_file.hpp"

namespace images {
namespace {

/// "resnet20-v1-B"; null if it is not of that form.
std::unique_ptr<nn::network<float>> make_residual(const model_description& what, const nn::execution& how) {
  nn::resnet_options options;
  options.classes = what.classes;
  options.input = what.input;
  const std::string_view rest = std::string_view(what.name).substr(6);
  const auto end = std::min(rest.find('-'), rest.size());
  const auto depth = muster::parse_number<int>(rest.substr(0, end));
  const auto kind = rest.substr(end);
  if (!depth || kind.size() != 5 || !kind.starts_with("-v") || kind[3] != '-') return nullptr;
  options.depth = *depth;
  options.version = kind[2] - '0';
  options.shortcut = kind[4];
  return nn::make_resnet<float>(options, how);
}

}  // namespace

std::unique_ptr<nn::network<float>> make_model(const model_description& what, const nn::execution& how) {
  if (what.name == "resnet50") return nn::make_resnet50<float>(what.classes, what.input, how);
  if (what.name.starts_with("resnet")) {
    if (auto made = make_residual(what, how)) return made;
  }
  if (what.name == "vgg16") {
    if (what.input != nn::extent{32, 32, 3}) {
      throw muster::configuration_error(
          "VGG16 of this form takes images of 32 x 32 pixels and 3 colours alone (the "
          "data has others); use a residual network or the small one");
    }
    return nn::make_vgg16<float>(what.classes, how);
  }
  using enum nn::cnn_variant;
  if (what.name == "cnn") return nn::make_cnn<float>(plain, what.classes, what.input, how);
  if (what.name == "cnn-dropout") return nn::make_cnn<float>(dropout, what.classes, what.input, how);
  if (what.name == "cnn-batch-norm") return nn::make_cnn<float>(batch_norm, what.classes, what.input, how);
  throw muster::configuration_error("there is no model '" + what.name +
                                    "' (known: resnetDEPTH-v1-A and the like, resnet50, vgg16, cnn, cnn-dropout, "
                                    "cnn-batch-norm); use one of these");
}

void save_model(const std::string& path, const model_description& what, nn::network<float>& net) {
  std::vector<float> numbers;
  for (const auto& each : net.parameters()) numbers.insert(numbers.end(), each.values.begin(), each.values.end());
  const auto statistics = net.statistics();
  numbers.insert(numbers.end(), statistics.begin(), statistics.end());
  examples::write_model(path,
                        {{"model", what.name},
                         {"input", {what.input.height, what.input.width, what.input.channels}},
                         {"classes", what.classes},
                         {"preparation", what.preparation.text},
                         {"parameters", numbers.size() - statistics.size()},
                         {"statistics", statistics.size()}},
                        numbers);
}

loaded_model load_model(const std::string& path, const nn::execution& how) {
  loaded_model made;
  auto file = examples::read_model(path, [&](const nlohmann::json& head) {
    made.what.name = head.at("model").get<std::string>();
    const auto& input = head.at("input");
    made.what.input = {input.at(0).get<std::size_t>(), input.at(1).get<std::size_t>(), input.at(2).get<std::size_t>()};
    made.what.classes = head.at("classes").get<std::size_t>();
    made.what.preparation = muster::prepare(head.at("preparation").get<std::string>());
  });
  made.net = make_model(made.what, how);
  const auto statistics = made.net->statistics();
  const std::size_t parameters = made.net->parameter_count();
  if (file.parameters != parameters || file.numbers.size() - parameters != statistics.size())
    throw examples::no_model(path, "the model it names has another number of parameters");
  std::copy(file.numbers.end() - static_cast<std::ptrdiff_t>(statistics.size()), file.numbers.end(),
            statistics.begin());
  file.numbers.resize(parameters);
  made.parameters = std::move(file.numbers);
  std::size_t at = 0;
  const auto shapes = made.net->shapes();
  for (std::size_t index = 0; index < shapes.size(); ++index) {
    made.net->bind(index, std::span(made.parameters).subspan(at, shapes[index].size()), {});
    at += shapes[index].size();
  }
  return made;
}

}  // namespace images
