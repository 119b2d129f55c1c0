#include "gateway_request.hpp"

#include <algorithm>

namespace served {

using json = nlohmann::ordered_json;

namespace {

constexpr int most_levels = 64;  // the JSON library parses without recursion, but writes recursively

bool is_deeper(const json& document, int levels) {
  return document.is_structured() &&
         (levels == 0 ||
          std::any_of(document.begin(), document.end(), [&](const json& each) { return is_deeper(each, levels - 1); }));
}

}  // namespace

request_head parse_head(const std::string& text) {
  request_head head{json::parse(text, nullptr, false)};
  if (!head.document.is_object()) throw refusal(400, "body: is not a JSON object");
  if (is_deeper(head.document, most_levels))
    throw refusal(400, "body: is nested deeper than " + std::to_string(most_levels) + " levels");
  try {
    const auto& inputs = head.document.at("inputs");
    if (inputs.size() != 1) throw refusal(400, "inputs: does not have exactly one element");
    const auto& size = inputs.at(0).at("parameters").at("binary_data_size");
    const auto& shape = inputs.at(0).at("shape");
    if (!shape.at(0).is_number_unsigned() || shape.at(0) == 0) throw refusal(400, "inputs[0].shape: has no rows");
    if (!size.is_number_unsigned()) throw refusal(400, "inputs[0].parameters.binary_data_size: is not a size");
    head.rows = shape.at(0);
    head.bytes = size;
    head.is_strings = inputs.at(0).at("datatype") == "BYTES";
  } catch (const json::exception&) {
    throw refusal(
        400, "inputs[0]: lacks its datatype, shape or parameters.binary_data_size; the gateway splits binary tensors");
  }
  const auto is_true = [&document = head.document](const char* place) {
    try {
      return document.value(json::json_pointer(place), json(false)) == true;
    } catch (const json::exception&) {  // the document has an array in place of an object
      return false;
    }
  };
  if (!is_true("/parameters/binary_data_output") && !is_true("/outputs/0/parameters/binary_data"))
    throw refusal(400, "parameters.binary_data_output: is not true; the gateway answers with binary tensors");
  const bool fits =
      head.is_strings ? head.bytes / 4 >= head.rows : head.bytes >= head.rows && head.bytes % head.rows == 0;
  if (!fits) {
    throw refusal(400, "inputs[0].parameters.binary_data_size: is " + std::to_string(head.bytes) +
                           ", which is not the size of " + std::to_string(head.rows) + " rows");
  }
  return head;
}

}  // namespace served
