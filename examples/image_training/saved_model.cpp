#include "saved_model.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

#include <nlohmann/json.hpp>

namespace images {
namespace {

constexpr const char* format = "muster-model-2";

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

std::span<const std::byte> bytes_of(std::span<const float> numbers) { return std::as_bytes(numbers); }

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
  const nlohmann::json head = {{"format", format},
                               {"model", what.name},
                               {"input", {what.input.height, what.input.width, what.input.channels}},
                               {"classes", what.classes},
                               {"preparation", what.preparation.text},
                               {"parameters", numbers.size() - statistics.size()},
                               {"statistics", statistics.size()}};
  muster::atomic_file file(path);
  const std::string line = head.dump() + "\n";
  const std::uint32_t checksum = muster::crc32c(bytes_of(numbers), muster::crc32c(std::as_bytes(std::span(line))));
  file.write(line);
  file.write(bytes_of(numbers));
  file.write(std::as_bytes(std::span(&checksum, 1)));
  file.commit();
}

loaded_model load_model(const std::string& path, const nn::execution& how) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw muster::data_error({path}, "cannot be read (it is not there, or not readable); check the path");
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  const auto refuse = [&](const std::string& why) -> muster::data_error {
    return {{path}, "is no model (" + why + "); give a file that --save has written"};
  };
  const auto line = all.find('\n');
  if (line == std::string::npos) throw refuse("its first line does not end");
  loaded_model made;
  std::size_t parameters = 0, statistics = 0;
  try {
    const auto head = nlohmann::json::parse(all.substr(0, line));
    if (head.at("format") != format) throw refuse("its format is unknown");
    made.what.name = head.at("model").get<std::string>();
    const auto& input = head.at("input");
    made.what.input = {input.at(0).get<std::size_t>(), input.at(1).get<std::size_t>(), input.at(2).get<std::size_t>()};
    made.what.classes = head.at("classes").get<std::size_t>();
    made.what.preparation = muster::prepare(head.at("preparation").get<std::string>());
    parameters = head.at("parameters").get<std::size_t>();
    statistics = head.at("statistics").get<std::size_t>();
  } catch (const nlohmann::json::exception&) {
    throw refuse("its first line is malformed");
  }
  const std::size_t body = all.size() - line - 1;
  if (parameters > body / 4 || statistics > body / 4 || body != 4 * (parameters + statistics + 1)) {
    throw refuse("it has " + std::to_string(body) + " bytes of numbers, and not as many as it says");
  }
  std::uint32_t checksum = 0;
  std::memcpy(&checksum, all.data() + all.size() - 4, 4);
  if (muster::crc32c(std::as_bytes(std::span(all).first(all.size() - 4))) != checksum) {
    throw refuse("its checksum does not match: it is damaged");
  }
  made.net = make_model(made.what, how);
  if (made.net->parameter_count() != parameters || made.net->statistics().size() != statistics) {
    throw refuse("the model it names has another number of parameters");
  }
  made.parameters.resize(parameters);
  std::memcpy(made.parameters.data(), all.data() + line + 1, 4 * parameters);
  std::memcpy(made.net->statistics().data(), all.data() + line + 1 + 4 * parameters, 4 * statistics);
  std::size_t at = 0;
  const auto shapes = made.net->shapes();
  for (std::size_t index = 0; index < shapes.size(); ++index) {
    made.net->bind(index, std::span(made.parameters).subspan(at, shapes[index].size()), {});
    at += shapes[index].size();
  }
  return made;
}

}  // namespace images
