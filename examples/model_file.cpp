#include "model_file.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/data/sources/safetensors.hpp>

namespace examples {
namespace {

constexpr const char* format = "muster-model-2";
constexpr const char* head_key = "muster";  // Of the metadata of a safetensors file.

bool is_safetensors(const std::string& path) { return path.ends_with(".safetensors"); }

/// Reads the head, and returns the number of statistics.
std::size_t read_head(std::string_view text, const std::string& path, model_file& contents,
                      const std::function<void(const nlohmann::json&)>& take) {
  try {
    const auto head = nlohmann::json::parse(text);
    if (head.at("format") != format) {
      throw no_model(path,
                     "it is of format " + head.at("format").dump() + ", and this program reads \"" + format + "\"");
    }
    contents.model = head.at("model").get<std::string>();
    contents.parameters = head.at("parameters").get<std::size_t>();
    take(head);
    return head.at("statistics").get<std::size_t>();
  } catch (const nlohmann::json::exception&) {
    throw no_model(path, "its first line is malformed");
  }
}

model_file read_safetensors_model(const std::string& path, const std::function<void(const nlohmann::json&)>& take) {
  const muster::data::safetensors_file file(path);
  const auto found = file.metadata().find(head_key);
  if (found == file.metadata().end())
    throw no_model(path, std::string("its metadata does not have the key '") + head_key +
                             "', which describes the model: another program wrote it, and only --init reads it");
  model_file contents;
  std::vector<std::string> names;
  const std::size_t statistics = read_head(found->second, path, contents, [&](const nlohmann::json& head) {
    names = head.at("tensors").get<std::vector<std::string>>();
    take(head);
  });
  for (const std::string& name : names) {
    const auto& tensor = file.tensor(name);
    contents.tensors.push_back(tensor);
    contents.numbers.resize(contents.numbers.size() + tensor.elements());
    file.read(name, tensor.shape, std::span(contents.numbers).last(tensor.elements()));
  }
  if (names.size() != file.tensors().size() || contents.numbers.size() != contents.parameters + statistics)
    throw no_model(path, "its tensors do not match its description");
  return contents;
}

}  // namespace

muster::data_error no_model(const std::string& path, const std::string& why) {
  return {{path}, "is no model (" + why + "); give a file that --save has written"};
}

void write_model(const std::string& path, nlohmann::json head, std::span<const model_tensor> tensors) {
  head["format"] = format;
  if (is_safetensors(path)) {
    std::vector<muster::data::tensor_view> views;
    for (const auto& [name, shape, values] : tensors) {
      head["tensors"].push_back(name);  // In the order of the network.
      views.push_back({{name, muster::dtype::float32, shape}, std::as_bytes(values)});
    }
    const std::string line = head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    muster::data::write_safetensors(path, views, {{head_key, line}});
    return;
  }
  muster::atomic_file file(path);
  const std::string line = head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::uint32_t checksum = muster::crc32c(std::as_bytes(std::span(line)));
  file.write(line);
  for (const auto& tensor : tensors) {
    file.write(std::as_bytes(tensor.values));
    checksum = muster::crc32c(std::as_bytes(tensor.values), checksum);
  }
  file.write(std::as_bytes(std::span(&checksum, 1)));
  file.commit();
}

model_file read_model(const std::string& path, const std::function<void(const nlohmann::json&)>& take) {
  if (is_safetensors(path)) return read_safetensors_model(path, take);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw muster::data_error({path}, "cannot be read (it is not there, or not readable); check the path");
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  const auto line = all.find('\n');
  if (line == std::string::npos) throw no_model(path, "its first line does not end");
  model_file contents;
  const std::size_t statistics = read_head(std::string_view(all).substr(0, line), path, contents, take);
  const std::size_t body = all.size() - line - 1;
  if (contents.parameters > body / 4 || statistics > body / 4 || body != 4 * (contents.parameters + statistics + 1))
    throw no_model(path, "it has " + std::to_string(body) + " bytes of numbers, which does not match its first line");
  std::uint32_t checksum = 0;
  std::memcpy(&checksum, all.data() + all.size() - 4, 4);
  if (muster::crc32c(std::as_bytes(std::span(all).first(all.size() - 4))) != checksum)
    throw no_model(path, "its checksum does not match: it is damaged");
  contents.numbers.resize(contents.parameters + statistics);
  std::memcpy(contents.numbers.data(), all.data() + line + 1, 4 * contents.numbers.size());
  return contents;
}

void read_tensors(const std::string& path, const std::string& model, std::span<const model_tensor> tensors) {
  if (is_safetensors(path)) {
    const muster::data::safetensors_file file(path);
    for (const auto& tensor : file.tensors()) {
      if (std::ranges::find(tensors, tensor.name, &model_tensor::name) == tensors.end())
        throw muster::data_error({path, 0, 0, tensor.offset},
                                 "has a tensor '" + tensor.name + "' that the model does not have (" + model + " has " +
                                     std::to_string(tensors.size()) + " tensors); use the file of the same model");
    }
    for (const auto& [name, shape, values] : tensors) file.read(name, shape, values);
    return;
  }
  const auto file = read_model(path, [](const auto&) {});
  std::size_t count = 0;
  for (const auto& tensor : tensors) count += tensor.values.size();
  if (file.model != model || file.numbers.size() != count)
    throw muster::data_error({path}, "has other parameters (it is a model '" + file.model + "' with " +
                                         std::to_string(file.numbers.size()) + " numbers, and " + model + " has " +
                                         std::to_string(count) + "); use the file of the same model");
  auto from = file.numbers.begin();
  for (const auto& tensor : tensors) {
    std::copy_n(from, tensor.values.size(), tensor.values.begin());
    from += static_cast<std::ptrdiff_t>(tensor.values.size());
  }
}

}  // namespace examples
