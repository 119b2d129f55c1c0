#include "saved_model.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <muster/core/error.hpp>

#include "assemble_model.hpp"

namespace images {
std::unique_ptr<nn::network<float>> make_model(const model_description& description, const nn::execution& execution) {
  auto net = std::make_unique<nn::network<float>>(description.input, execution);
  assemble_model(*net, description);
  return net;
}

std::vector<examples::model_tensor> tensors_of(nn::network<float>& net) {
  std::vector<examples::model_tensor> parameters, statistics;
  auto rest = net.statistics();
  for (const auto& each : net.parameters()) {
    parameters.push_back({each.name, {each.extents.begin(), each.extents.end()}, each.values});
    if (!each.name.starts_with("norm") || !each.name.ends_with(".scale")) continue;
    const std::string norm = each.name.substr(0, each.name.find('.'));
    for (const char* const name : {".mean", ".variance"}) {
      statistics.push_back({norm + name, {each.values.size()}, rest.first(each.values.size())});
      rest = rest.subspan(each.values.size());
    }
  }
  std::ranges::move(statistics, std::back_inserter(parameters));
  return parameters;
}

void save_model(const std::string& path, const model_description& description, nn::network<float>& net) {
  nlohmann::json head = {{"model", description.name},
                         {"input", {description.input.height, description.input.width, description.input.channels}},
                         {"classes", description.classes},
                         {"preparation", description.preparation.text},
                         {"parameters", net.parameter_count()},
                         {"statistics", net.statistics().size()}};
  if (!description.class_names.empty()) head["class_names"] = description.class_names;
  examples::write_model(path, std::move(head), tensors_of(net));
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
  const auto is_same = [](const muster::record_field& a, const examples::model_tensor& b) {
    return a.name == b.name && a.shape == b.shape;
  };
  if (!file.tensors.empty() && !std::ranges::equal(file.tensors, tensors_of(*result.net), is_same))
    throw examples::no_model(path, "its tensors have other names or shapes than its model");
  return result;
}

}  // namespace images
