// Properties of the model server's request parser for any body; used by the fuzzer and by test_serve.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "serve/protocol.hpp"

namespace fuzz {

namespace serve = muster::serve;

inline void require_of_serve(bool holds, const char* property) {
  if (!holds) throw std::logic_error(property);
}

inline const std::array<serve::model_info, 4>& served_models() {
  using muster::dtype;
  const serve::tensor_info output{.name = "y", .shape = {2, 1}};
  static const std::array<serve::model_info, 4> models = {
      {{"", {.name = "x", .shape = {2, 2}}, output},
       {"", {.name = "x", .is_bytes = true}, output},
       {"", {.name = "x", .type = dtype::uint8, .shape = {3}, .takes_files = true}, output},
       {"", {.name = "x", .type = dtype::boolean}, output}}};
  return models;
}

/// Writes the rows as a request with binary tensors, which must be parsed to the same rows.
inline void check_again(const serve::parsed_request& request, const serve::model_info& model, const char* datatype) {
  std::string tensor;
  for (const auto row : request.rows) {
    const auto size = static_cast<std::uint32_t>(row.size());
    char length[4];
    for (unsigned b = 0; b < 4; ++b) length[b] = static_cast<char>(size >> (8 * b));
    if (model.input.is_bytes || request.are_files) tensor.append(length, 4);
    tensor.append(reinterpret_cast<const char*>(row.data()), row.size());
  }
  std::string json = R"({"inputs":[{"name":"x","datatype":")" + std::string(request.are_files ? "BYTES" : datatype) +
                     R"(","shape":[)" + std::to_string(request.rows.size());
  for (const auto extent : request.are_files ? std::vector<std::size_t>{} : model.input.shape)
    json += "," + std::to_string(extent);
  json += R"(],"parameters":{"binary_data_size":)" + std::to_string(tensor.size()) + "}}]}";
  const std::string body = json + tensor;
  const auto again = serve::parse_infer(body, json.size(), model, request.rows.size());
  require_of_serve(again.are_files == request.are_files, "files are no files when they are sent as binary tensors");
  require_of_serve(
      std::ranges::equal(request.rows, again.rows, [](auto a, auto b) { return std::ranges::equal(a, b); }),
      "rows change when they are sent as binary tensors");
}

/// Parses a body. The first byte selects the model and the protocol, the next two bytes the length of the JSON part.
/// Returns true if the body was accepted.
inline bool check_serve(std::string_view data) {
  if (data.size() < 3) return false;
  constexpr std::size_t max_rows = 5;
  constexpr const char* datatypes[] = {"FP32", "BYTES", "UINT8", "BOOL"};
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(data[k]); };
  const std::size_t which = byte(0) % 4;
  const auto& model = served_models()[which];
  const bool is_v1 = byte(0) / 4 % 2 == 1, is_all_json = byte(0) / 8 % 2 == 0;
  const std::string body(data.substr(3));
  const std::size_t json_bytes = is_all_json ? body.size() : byte(1) + std::size_t{256} * byte(2);
  try {
    const auto request =
        is_v1 ? serve::parse_predict(body, model, max_rows) : serve::parse_infer(body, json_bytes, model, max_rows);
    require_of_serve(!request.rows.empty() && request.rows.size() <= max_rows, "there are no rows, or too many");
    for (const auto row : request.rows) {
      require_of_serve(model.input.is_bytes || request.are_files || row.size() == model.input.row_bytes(),
                       "a row has another size");
      const auto is_in = [&](const auto& memory) {
        const auto* const begin = reinterpret_cast<const std::byte*>(memory.data());
        return row.data() >= begin && row.data() + row.size() <= begin + memory.size();
      };
      require_of_serve(row.empty() || is_in(request.decoded_rows) || is_in(body),
                       "a row is outside the request's memory");
    }
    check_again(request, model, datatypes[which]);
    const std::vector<std::byte> values(request.rows.size() * model.output.row_bytes());
    const std::string answer =
        is_v1 ? serve::write_predictions(model, values) : serve::write_infer("m", 1, request, model, values);
    require_of_serve(answer.find_first_of("\r\n") == std::string::npos, "an answer has several lines");
    return true;
  } catch (const serve::request_error& refused) {
    const std::string_view text = refused.what();
    require_of_serve(refused.status() == 400 || refused.status() == 413, "a body is refused with another status");
    require_of_serve(text.find(": ") != std::string_view::npos, "a refusal names no field");
    require_of_serve(text.size() < 300 && text.find('\n') == std::string_view::npos, "a refusal is long");
    return false;
  }
}

}  // namespace fuzz
