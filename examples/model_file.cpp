#include "model_file.hpp"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>

#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>

namespace examples {
namespace {

constexpr const char* format = "muster-model-2";

}  // namespace

muster::data_error no_model(const std::string& path, const std::string& why) {
  return {{path}, "is no model (" + why + "); give a file that --save has written"};
}

void write_model(const std::string& path, nlohmann::json head, std::span<const float> numbers) {
  head["format"] = format;
  muster::atomic_file file(path);
  const std::string line = head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const auto bytes = std::as_bytes(numbers);
  const std::uint32_t checksum = muster::crc32c(bytes, muster::crc32c(std::as_bytes(std::span(line))));
  file.write(line);
  file.write(bytes);
  file.write(std::as_bytes(std::span(&checksum, 1)));
  file.commit();
}

model_file read_model(const std::string& path, const std::function<void(const nlohmann::json&)>& take) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw muster::data_error({path}, "cannot be read (it is not there, or not readable); check the path");
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  const auto line = all.find('\n');
  if (line == std::string::npos) throw no_model(path, "its first line does not end");
  model_file contents;
  std::size_t statistics = 0;
  try {
    const auto head = nlohmann::json::parse(all.substr(0, line));
    if (head.at("format") != format) {
      throw no_model(path,
                     "it is of format " + head.at("format").dump() + ", and this program reads \"" + format + "\"");
    }
    contents.model = head.at("model").get<std::string>();
    contents.parameters = head.at("parameters").get<std::size_t>();
    statistics = head.at("statistics").get<std::size_t>();
    take(head);
  } catch (const nlohmann::json::exception&) {
    throw no_model(path, "its first line is malformed");
  }
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

}  // namespace examples
