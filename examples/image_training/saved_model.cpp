#include "saved_model.hpp"

#include <algorithm>
#include <utility>

#include <muster/core/error.hpp>

#include "../model_file.hpp"
#include "assemble_model.hpp"

namespace images {
std::unique_ptr<nn::network<float>> make_model(const model_description& description, const nn::execution& execution) {
  auto net = std::make_unique<nn::network<float>>(description.input, execution);
  assemble_model(*net, description);
  return net;
}

void save_model(const std::string& path, const model_description& description, nn::network<float>& net) {
  std::vector<float> numbers;
  for (const auto& each : net.parameters()) numbers.insert(numbers.end(), each.values.begin(), each.values.end());
  const auto statistics = net.statistics();
  numbers.insert(numbers.end(), statistics.begin(), statistics.end());
  nlohmann::json head = {{"model", description.name},
                         {"input", {description.input.height, description.input.width, description.input.channels}},
                         {"classes", description.classes},
                         {"preparation", description.preparation.text},
                         {"parameters", numbers.size() - statistics.size()},
                         {"statistics", statistics.size()}};
  if (!description.class_names.empty()) head["class_names"] = description.class_names;
  examples::write_model(path, std::move(head), numbers);
}

loaded_model load_model(const std::string& path, const nn::execution& execution) {
  loaded_model result;
  auto file = examples::read_model(path, [&](const nlohmann::json& head) {
    result.description.name = head.at("model").get<std::string>();
    const auto& input = head.at("input");
    result.description.input = {input.at(0).get<std::size_t>(), input.at(1).get<std::size_t>(),
                                input.at(2).get<std::size_t>()};
    result.description.classes = head.at("classes").get<std::size_t>();
    result.description.preparation = muster::prepare(head.at("preparation").get<std::string>());
    if (head.contains("class_names"))
      result.description.class_names = head["class_names"].get<std::vector<std::string>>();
    if (!result.description.class_names.empty() && result.description.class_names.size() != result.description.classes)
      throw examples::no_model(path, "its class names do not match its number of classes");
  });
  result.net = make_model(result.description, execution);
  const auto statistics = result.net->statistics();
  const std::size_t parameters = result.net->parameter_count();
  if (file.parameters != parameters || file.numbers.size() - parameters != statistics.size())
    throw examples::no_model(path, "its number of parameters does not match its model");
  std::copy(file.numbers.end() - static_cast<std::ptrdiff_t>(statistics.size()), file.numbers.end(),
            statistics.begin());
  file.numbers.resize(parameters);
  result.parameters = std::move(file.numbers);
  std::size_t at = 0;
  const auto shapes = result.net->shapes();
  for (std::size_t index = 0; index < shapes.size(); ++index) {
    result.net->bind(index, std::span(result.parameters).subspan(at, shapes[index].size()), {});
    at += shapes[index].size();
  }
  return result;
}

}  // namespace images
