#include "gateway_request.hpp"

#include <algorithm>

namespace served {

using json = nlohmann::ordered_json;

namespace {

constexpr int most_levels = 64;  // JSON is read without recursion, but written with

bool is_deeper(const json& document, int levels) {
  return document.is_structured() &&
         (levels == 0 ||
          std::any_of(document.begin(), document.end(), [&](const json& each) { return is_deeper(each, levels - 1); }));
}

}  // namespace

request_head parse_head(const std::string& text) {
  request_head made{json::parse(text, nullptr, false)};
  if (!made.document.is_object()) throw refusal(400, "body: is no JSON object");
  if (is_deeper(made.document, most_levels))
    throw refusal(400, "body: is nested deeper than " + std::to_string(most_levels) + " levels");
  try {
    const auto& inputs = made.document.at("inputs");
    if (inputs.size() != 1) throw refusal(400, "inputs: has another number than one");
    const auto& size = inputs.at(0).at("parameters").at("binary_data_size");
    const auto& shape = inputs.at(0).at("shape");
    if (!shape.at(0).is_number_unsigned() || shape.at(0) == 0) throw refusal(400, "inputs[0].shape: has no rows");
    if (!size.is_number_unsigned()) throw refusal(400, "inputs[0].parameters.binary_data_size: is no size");
    made.rows = shape.at(0);
    made.bytes = size;
    made.is_strings = inputs.at(0).at("datatype") == "BYTES";
  } catch (const json::exception&) {
    throw refusal(
        400, "inputs[0]: lacks its datatype, shape or parameters.binary_data_size; the gateway splits binary tensors");
  }
  const auto is_true = [&document = made.document](const char* place) {
    try {
      return document.value(json::json_pointer(place), json(false)) == true;
    } catch (const json::exception&) {  // an array is where an object should be
      return false;
    }
  };
  if (!is_true("/parameters/binary_data_output") && !is_true("/outputs/0/parameters/binary_data"))
    throw refusal(400, "parameters.binary_data_output: is not true; the gateway answers with binary tensors");
  const bool fits =
      made.is_strings ? made.bytes / 4 >= made.rows : made.bytes >= made.rows && made.bytes % made.rows == 0;
  if (!fits) {
    throw refusal(400, "inputs[0].parameters.binary_data_size: is " + std::to_string(made.bytes) +
                           ", which is not that of " + std::to_string(made.rows) + " rows");
  }
  return made;
}

}  // namespace served
