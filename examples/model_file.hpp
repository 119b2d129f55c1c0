// The file of a trained model: a line of JSON, then its numbers.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <muster/core/error.hpp>

#include <nlohmann/json.hpp>

namespace examples {

/// Writes `head` (with "model" and the numbers of "parameters" and "statistics") and the format as a line, then the
/// numbers as 32-bit floats in this machine's format, then their CRC-32C. The file is written completely or not at all.
/// Throws muster::configuration_error when it cannot be written.
void write_model(const std::string& path, nlohmann::json head, std::span<const float> numbers);

struct model_file {
  std::string model;
  std::size_t parameters = 0;
  std::vector<float> numbers;  ///< Parameters, then statistics.
};
/// Calls `take` with the head. Throws muster::data_error for a file that is no model, for a damaged file, or when
/// `take` throws an exception of the JSON library.
[[nodiscard]] model_file read_model(const std::string& path, const std::function<void(const nlohmann::json&)>& take);

/// Returns the error for a file that is no model.
[[nodiscard]] muster::data_error no_model(const std::string& path, const std::string& why);

}  // namespace examples
