#include "saved_model.hpp"

#include <algorithm>
#include <utility>

#include <muster/core/error.hpp>

#include "../model_file.hpp"
#include "assemble_model.hpp"

namespace images {
std::unique_ptr<nn::network<float>> make_model(const model_description& what, const nn::execution& how) {
  auto made = std::make_unique<nn::network<float>>(what.input, how);
  assemble_model(*made, what);
  return made;
}

void save_model(const std::string& path, const model_description& what, nn::network<float>& net) {
  std::vector<float> numbers;
  for (const auto& each : net.parameters()) numbers.insert(numbers.end(), each.values.begin(), each.values.end());
  const auto statistics = net.statistics();
  numbers.insert(numbers.end(), statistics.begin(), statistics.end());
  nlohmann::json head = {{"model", what.name},
                         {"input", {what.input.height, what.input.width, what.input.channels}},
                         {"classes", what.classes},
                         {"preparation", what.preparation.text},
                         {"parameters", numbers.size() - statistics.size()},
                         {"statistics", statistics.size()}};
  if (!what.class_names.empty()) head["class_names"] = what.class_names;
  examples::write_model(path, std::move(head), numbers);
}

loaded_model load_model(const std::string& path, const nn::execution& how) {
  loaded_model made;
  auto file = examples::read_model(path, [&](const nlohmann::json& head) {
    made.what.name = head.at("model").get<std::string>();
    const auto& input = head.at("input");
    made.what.input = {input.at(0).get<std::size_t>(), input.at(1).get<std::size_t>(), input.at(2).get<std::size_t>()};
    made.what.classes = head.at("classes").get<std::size_t>();
    made.what.preparation = muster::prepare(head.at("preparation").get<std::string>());
    if (head.contains("class_names")) made.what.class_names = head["class_names"].get<std::vector<std::string>>();
    if (!made.what.class_names.empty() && made.what.class_names.size() != made.what.classes)
      throw examples::no_model(path, "it has names for another number of classes");
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
