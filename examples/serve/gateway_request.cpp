#include "gateway_request.hpp"

namespace served {

using json = nlohmann::ordered_json;

request_head parse_head(const std::string& text) {
  request_head made{json::parse(text, nullptr, false)};
  if (!made.document.is_object()) throw refusal(400, "body: is no JSON object");
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
  const auto& document = made.document;
  const json::json_pointer whole("/parameters/binary_data_output"), one("/outputs/0/parameters/binary_data");
  if (document.value(whole, json(false)) != true && document.value(one, json(false)) != true)
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
