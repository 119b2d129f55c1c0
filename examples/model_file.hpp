// The file of a trained model: a line of JSON, then its numbers; or named tensors in a file that ends with
// .safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/record_schema.hpp>

#include <nlohmann/json.hpp>

namespace examples {

/// A tensor of a model: parameters or statistics.
struct model_tensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::span<float> values;
};

/// Writes `head` (with "model" and the numbers of "parameters" and "statistics") and the format as a line, then the
/// values of the tensors as 32-bit floats in this machine's format, then their CRC-32C. If the path ends with
/// ".safetensors", writes a safetensors file with the line as metadata. The file is written completely or not at all.
/// Throws muster::configuration_error when it cannot be written.
void write_model(const std::string& path, nlohmann::json head, std::span<const model_tensor> tensors);

struct model_file {
  std::string model;
  std::size_t parameters = 0;
  std::vector<float> numbers;                 ///< Parameters, then statistics.
  std::vector<muster::record_field> tensors;  ///< The tensors of `numbers`; empty unless from a safetensors file.
};
/// Calls `take` with the head. Throws muster::data_error for a file that is no model, for a damaged file, or when
/// `take` throws an exception of the JSON library.
[[nodiscard]] model_file read_model(const std::string& path, const std::function<void(const nlohmann::json&)>& take);

/// Reads the values of the tensors of a model, for --init. In a safetensors file, of any program, the tensors have the
/// same names and shapes. Another file is one that write_model() wrote for `model`. Throws muster::data_error.
void read_tensors(const std::string& path, const std::string& model, std::span<const model_tensor> tensors);

/// Returns the error for a file that is no model.
[[nodiscard]] muster::data_error no_model(const std::string& path, const std::string& why);

}  // namespace examples
