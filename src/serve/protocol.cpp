// Parses the bodies of requests.
#include "protocol.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include <simdjson.h>

#include <muster/core/base64.hpp>
#include <muster/core/wire.hpp>
#include "datatypes.hpp"

namespace muster { inline namespace v0 { namespace serve {
namespace {

using json = simdjson::dom::element;
using simdjson::dom::array;

[[noreturn]] void refuse_field(const std::string& field, const std::string& problem) {
  throw request_error(400, field + ": " + problem);
}

/// Returns the value as a T, or nothing if the value is not a T.
template <class T>
std::optional<T> number_of(const json& value) {
  using integer = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  using number = std::conditional_t<std::is_floating_point_v<T>, double, integer>;
  using wide_type = std::conditional_t<std::is_same_v<T, bool>, bool, number>;
  using limits = std::numeric_limits<T>;
  wide_type found{};
  if (value.get(found) != simdjson::SUCCESS) return std::nullopt;
  if (found != std::clamp<wide_type>(found, limits::lowest(), limits::max())) return std::nullopt;
  return static_cast<T>(found);
}

/// A writer of JSON numbers as the elements T of a row.
template <class T>
class row_writer {
 public:
  row_writer(std::span<std::byte> output, std::string field, std::string_view datatype)
      : output_(output), field_(std::move(field)), datatype_(datatype) {}

  /// Reads a flat array with all numbers, or arrays that are nested according to the shape.
  void flat_or_nested(const json& value, std::span<const std::size_t> shape) {
    array items;
    if (value.get(items) != simdjson::SUCCESS) refuse_field(field_, "is not an array");
    if (items.size() > 0 && items.at(0).is_array()) return nested(value, shape);
    for (const json item : items) append_value(item);
  }
  /// Reads arrays that are nested according to the shape.
  void nested(const json& value, std::span<const std::size_t> shape) {
    if (shape.empty()) return append_value(value);
    array items;
    if (value.get(items) != simdjson::SUCCESS)
      refuse_field(field_, "has too few dimensions (an array of " + std::to_string(shape.front()) + " is missing)");
    std::size_t count = 0;
    for (const json item : items) {
      if (++count > shape.front()) break;
      nested(item, shape.subspan(1));
    }
    if (count != shape.front()) {
      refuse_field(field_, "an array has " + std::string(count > shape.front() ? "more" : "fewer") + " than " +
                               std::to_string(shape.front()) + " items, which the shape requires");
    }
  }
  void finish() const {
    if (offset_ != output_.size()) {
      refuse_field(field_, "has " + std::to_string(offset_ / sizeof(T)) + " values, but its shape has " +
                               std::to_string(output_.size() / sizeof(T)));
    }
  }

 private:
  void append_value(const json& value) {
    const auto number = number_of<T>(value);
    if (!number)
      refuse_field(field_, "value " + std::to_string(offset_ / sizeof(T)) + " is not " + std::string(datatype_));
    if (offset_ == output_.size())
      refuse_field(field_, "has more than the " + std::to_string(output_.size() / sizeof(T)) + " values of its shape");
    std::memcpy(output_.data() + offset_, &*number, sizeof(T));
    offset_ += sizeof(T);
  }

  std::span<std::byte> output_;
  std::string field_;
  std::string_view datatype_;
  std::size_t offset_ = 0;
};

std::string shape_text(std::span<const std::size_t> shape) {
  std::string text = "[rows";
  for (const std::size_t extent : shape) text += "," + std::to_string(extent);
  return text + "]";
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// Limit for the size of JSON, because the parser requires several times the text's size. Binary data have no such
/// cost.
constexpr std::size_t most_json = std::size_t{16} << 20;

/// Parses JSON. The returned document is valid until this thread parses the next document.
json parse_json(std::string_view text) {
  thread_local simdjson::dom::parser parser(most_json);
  json document;
  if (text.size() > most_json)
    throw request_error(413, "body: has more than " + std::to_string(most_json) + " bytes of JSON; send binary data");
  // The copy has zeros after the text, because simdjson 3.0 reads past the end of a text with unclosed brackets.
  const simdjson::padded_string copy(text);
  const auto failed = parser.parse(copy).get(document);
  if (failed != simdjson::SUCCESS)
    refuse_field("body", std::string("is not JSON (") + simdjson::error_message(failed) + ")");
  if (!document.is_object()) refuse_field("body", "is not a JSON object");
  return document;
}

/// Returns a member of an object, or nothing if the member is absent or null. Clients write null for an optional field.
std::optional<json> member(const json& object, std::string_view key) {
  json found;
  if (object[key].get(found) != simdjson::SUCCESS || found.is_null()) return std::nullopt;
  return found;
}

template <class T>
T required(const json& object, const char* key, const std::string& field) {
  T value;
  if (object[key].get(value) != simdjson::SUCCESS)
    refuse_field(field, std::is_same_v<T, array> ? "is missing or not an array" : "is missing or not a string");
  return value;
}

void require_form_in_json(const tensor_info& info, const std::string& field, const char* suggestion) {
  if (!with_type(info.type, [](auto) {}))
    refuse_field(field, std::string(datatype_of(info)) + " has no form in JSON; " + suggestion);
}

/// Returns parameters.<key>, or nothing if the parameter is absent.
template <class T>
std::optional<T> parameter_of(const json& object, const char* key, const std::string& field) {
  const auto parameters = member(object, "parameters");
  if (parameters && !parameters->is_object()) refuse_field(field + "parameters", "is not an object");
  const auto found = parameters ? member(*parameters, key) : std::nullopt;
  if (!found) return std::nullopt;
  T value{};
  if (found->get(value) != simdjson::SUCCESS)
    refuse_field(field + "parameters." + key, std::is_same_v<T, bool> ? "is neither true nor false" : "is not a size");
  return value;
}

void require_rows(std::size_t row_count, std::size_t max_rows, const std::string& field) {
  if (row_count == 0) refuse_field(field, "has no rows");
  if (row_count > max_rows)
    refuse_field(field,
                 "has more than " + std::to_string(max_rows) + " rows, the limit of a request; send several requests");
}

/// Checks the shape of an input, and returns the number of rows.
std::size_t checked_rows(const json& input, const tensor_info& info, std::size_t max_rows) {
  std::vector<std::uint64_t> shape;
  for (const json item : required<array>(input, "shape", "inputs[0].shape")) {
    std::uint64_t extent = 0;
    if (item.get(extent) != simdjson::SUCCESS) refuse_field("inputs[0].shape", "has an element that is not a size");
    shape.push_back(extent);
    if (shape.size() > info.shape.size() + 1) break;
  }
  bool matches = shape.size() == info.shape.size() + 1;
  for (std::size_t k = 0; matches && k < info.shape.size(); ++k) matches = shape[k + 1] == info.shape[k];
  if (!matches) refuse_field("inputs[0].shape", "is not " + shape_text(info.shape) + ", which the model requires");
  require_rows(shape[0], max_rows, "inputs[0].shape");
  return shape[0];
}

/// Splits a tensor into rows of fixed size.
void split_rows(parsed_request& request, std::span<const std::byte> content, std::size_t row_count,
                std::size_t row_bytes) {
  for (std::size_t k = 0; k < row_count; ++k) request.rows.push_back(content.subspan(k * row_bytes, row_bytes));
}

/// Splits a tensor into rows of any size. Each row is preceded by its length, as a little-endian 32-bit number.
void split_strings(parsed_request& request, std::span<const std::byte> content, std::size_t row_count) {
  detail::wire_reader reader(content);
  for (std::size_t k = 0; k < row_count; ++k) {
    const auto size = reader.number<std::uint32_t>();
    if (!reader.good()) refuse_field("inputs[0]", "its binary data end before row " + std::to_string(k));
    request.rows.push_back(reader.bytes(size));
    if (!reader.good()) refuse_field("inputs[0]", "row " + std::to_string(k) + " is longer than its binary data");
  }
  if (!reader.is_complete()) refuse_field("inputs[0]", "its binary data continue after the last row");
}

void read_binary_rows(parsed_request& request, const tensor_info& input, std::span<const std::byte> binary,
                      std::uint64_t size, std::size_t row_count) {
  const std::string field = "inputs[0].parameters.binary_data_size";
  if (size != binary.size()) {
    refuse_field(field, "is " + std::to_string(size) + ", but " + std::to_string(binary.size()) +
                            " bytes follow the JSON (see Inference-Header-Content-Length)");
  }
  if (input.is_bytes) return split_strings(request, binary, row_count);
  if (size != row_count * input.row_bytes())
    refuse_field(field, "is " + std::to_string(size) + ", but the shape has " +
                            std::to_string(row_count * input.row_bytes()) + " bytes");
  split_rows(request, binary, row_count, input.row_bytes());
}

/// Splits `decoded_rows` into rows that end at `ends`. Called after all rows were appended, because appending may move
/// the memory.
void split_rows(parsed_request& request, std::span<const std::size_t> ends) {
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    request.rows.push_back(std::span<const std::byte>(request.decoded_rows).subspan(begin, end - begin));
    begin = end;
  }
}

/// Appends a file to `decoded_rows`: {"b64": TEXT}, or such an object as the member "image_bytes" or `name` of an
/// object.
void append_file(parsed_request& request, const json& value, const std::string& name, std::string field) {
  json file = value;
  for (const std::string_view key : {std::string_view("image_bytes"), std::string_view(name)}) {
    json found;
    if (!value.is_object() || value[key].get(found) != simdjson::SUCCESS) continue;
    file = found;
    field += "." + std::string(key);
    break;
  }
  const auto bytes = detail::from_base64(required<std::string_view>(file, "b64", field + ".b64"));
  if (!bytes) refuse_field(field + ".b64", "is not base64");
  const auto content = std::as_bytes(std::span(*bytes));
  request.decoded_rows.insert(request.decoded_rows.end(), content.begin(), content.end());
}

void read_json_rows(parsed_request& request, const tensor_info& input, const json& data, std::size_t row_count) {
  const std::string field = "inputs[0].data";
  if (input.is_bytes) {
    std::vector<std::size_t> ends;
    array items;
    if (data.get(items) != simdjson::SUCCESS) refuse_field(field, "is not an array");
    for (const json item : items) {
      std::string_view text;
      if (item.is_object()) {
        append_file(request, item, input.name, field + "[" + std::to_string(ends.size()) + "]");
      } else if (item.get(text) != simdjson::SUCCESS) {
        refuse_field(field, "value " + std::to_string(ends.size()) + " is not a string");
      }
      const auto bytes = bytes_of(text);
      request.decoded_rows.insert(request.decoded_rows.end(), bytes.begin(), bytes.end());
      ends.push_back(request.decoded_rows.size());
    }
    if (ends.size() != row_count)
      refuse_field(field,
                   "has " + std::to_string(ends.size()) + " values, but its shape has " + std::to_string(row_count));
    return split_rows(request, ends);
  }
  request.decoded_rows.resize(row_count * input.row_bytes());
  require_form_in_json(input, field, "send binary data");
  with_type(input.type, [&](auto kind) {
    row_writer<decltype(kind)> writer(request.decoded_rows, field, datatype_of(input));
    std::vector<std::size_t> shape{row_count};
    shape.insert(shape.end(), input.shape.begin(), input.shape.end());
    writer.flat_or_nested(data, shape);
    writer.finish();
  });
  split_rows(request, request.decoded_rows, row_count, input.row_bytes());
}

bool requests_binary(const json& body, const model_info& model) {
  bool is_binary = parameter_of<bool>(body, "binary_data_output", "").value_or(false);
  if (!member(body, "outputs")) return is_binary;
  for (const json output : required<array>(body, "outputs", "outputs")) {
    if (required<std::string_view>(output, "name", "outputs.name") != model.output.name)
      refuse_field("outputs.name", "is not an output of the model (it has '" + model.output.name + "')");
    if (parameter_of<std::uint64_t>(output, "classification", "outputs.").value_or(0) > 0)
      refuse_field("outputs.parameters.classification", "is an unsupported extension; request the values");
    is_binary = parameter_of<bool>(output, "binary_data", "outputs.").value_or(is_binary);
  }
  return is_binary;
}

}  // namespace

parsed_request parse_infer(std::string_view body, std::size_t json_bytes, const model_info& model,
                           std::size_t max_rows) {
  if (json_bytes > body.size()) {
    refuse_field("Inference-Header-Content-Length",
                 "is " + std::to_string(json_bytes) + ", but the body has " + std::to_string(body.size()) + " bytes");
  }
  const json document = parse_json(body.substr(0, json_bytes));
  const auto binary = bytes_of(body.substr(json_bytes));
  parsed_request request;
  if (member(document, "id")) request.id = required<std::string_view>(document, "id", "id");
  request.is_binary = requests_binary(document, model);
  if (!request.is_binary) require_form_in_json(model.output, "outputs", "request binary data");
  const auto inputs = required<array>(document, "inputs", "inputs");
  if (inputs.size() != 1) refuse_field("inputs", "does not have exactly one element, which the model requires");
  const json input = inputs.at(0);
  if (required<std::string_view>(input, "name", "inputs[0].name") != model.input.name)
    refuse_field("inputs[0].name", "is not an input of the model (it has '" + model.input.name + "')");
  const auto datatype = required<std::string_view>(input, "datatype", "inputs[0].datatype");
  const tensor_info files{.name = model.input.name, .is_bytes = true};
  request.are_files = model.input.takes_files && datatype == datatype_of(files);
  const tensor_info& info = request.are_files ? files : model.input;
  if (datatype != datatype_of(info))
    refuse_field("inputs[0].datatype",
                 "is not " + std::string(datatype_of(model.input)) + ", which the model requires");
  const std::size_t row_count = checked_rows(input, info, max_rows);
  const auto size = parameter_of<std::uint64_t>(input, "binary_data_size", "inputs[0].");
  const auto data = member(input, "data");
  if (size && data) refuse_field("inputs[0].data", "is present in addition to binary data");
  if (size) {
    read_binary_rows(request, info, binary, *size, row_count);
  } else if (!binary.empty()) {
    refuse_field("inputs[0].parameters.binary_data_size", "is missing, but binary data follow the JSON");
  } else if (data) {
    read_json_rows(request, info, *data, row_count);
  } else {
    refuse_field("inputs[0].data", "is missing");
  }
  return request;
}

parsed_request parse_predict(std::string_view body, const model_info& model, std::size_t max_rows) {
  const json document = parse_json(body);
  if (member(document, "inputs"))
    refuse_field("inputs", "has rows by columns, which are not supported; send instances");
  const auto signature = member(document, "signature_name");
  if (signature && required<std::string_view>(document, "signature_name", "signature_name") != "serving_default")
    refuse_field("signature_name", "is not serving_default, the only signature of each model");
  const auto instances = required<array>(document, "instances", "instances");
  require_form_in_json(model.output, "predictions", "use v2, and request binary data");
  const auto& input = model.input;
  parsed_request request;
  std::vector<std::size_t> ends;
  const std::size_t row_count = instances.size();
  require_rows(row_count, max_rows, "instances");
  request.are_files = input.takes_files && instances.at(0).is_object();
  if (!request.are_files) request.decoded_rows.resize(row_count * input.row_bytes());
  for (const json instance : instances) {
    const std::string field = "instances[" + std::to_string(ends.size()) + "]";
    if (input.is_bytes || request.are_files) {
      append_file(request, instance, input.name, field);
      ends.push_back(request.decoded_rows.size());
    } else {
      require_form_in_json(input, field, "use v2 with binary data");
      const auto row = std::span(request.decoded_rows).subspan(ends.size() * input.row_bytes(), input.row_bytes());
      with_type(input.type, [&](auto kind) {
        row_writer<decltype(kind)>(row, field, datatype_of(input)).nested(instance, input.shape);
      });
      ends.push_back((ends.size() + 1) * input.row_bytes());
    }
  }
  split_rows(request, ends);
  return request;
}

}}}  // namespace muster::v0::serve
