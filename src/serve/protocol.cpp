// The bodies of requests.
#include "protocol.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include <simdjson.h>

#include "../core/base64.hpp"
#include "../core/wire.hpp"
#include "datatypes.hpp"

namespace muster { inline namespace v0 { namespace serve {
namespace {

using json = simdjson::dom::element;
using simdjson::dom::array;

[[noreturn]] void refuse_field(const std::string& field, const std::string& problem) {
  throw request_error(400, field + ": " + problem);
}

/// The value as a T; nothing if it is none.
template <class T>
std::optional<T> number_of(const json& value) {
  using integer = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  using number = std::conditional_t<std::is_floating_point_v<T>, double, integer>;
  using wide = std::conditional_t<std::is_same_v<T, bool>, bool, number>;
  using limits = std::numeric_limits<T>;
  wide found{};
  if (value.get(found) != simdjson::SUCCESS) return std::nullopt;
  if (found != std::clamp<wide>(found, limits::lowest(), limits::max())) return std::nullopt;
  return static_cast<T>(found);
}

/// A row of T that is filled from JSON.
template <class T>
class row_writer {
 public:
  row_writer(std::span<std::byte> to, std::string field, std::string_view datatype)
      : to_(to), field_(std::move(field)), datatype_(datatype) {}

  /// An array of all numbers, or arrays nested as the shape says.
  void flat_or_nested(const json& value, std::span<const std::size_t> shape) {
    array items;
    if (value.get(items) != simdjson::SUCCESS) refuse_field(field_, "is no array");
    if (items.size() > 0 && items.at(0).is_array()) return nested(value, shape);
    for (const json item : items) one(item);
  }
  /// Arrays nested as the shape says.
  void nested(const json& value, std::span<const std::size_t> shape) {
    if (shape.empty()) return one(value);
    array items;
    if (value.get(items) != simdjson::SUCCESS)
      refuse_field(field_, "has too few dimensions (an array of " + std::to_string(shape.front()) + " is missing)");
    std::size_t count = 0;
    for (const json item : items) {
      if (++count > shape.front()) break;
      nested(item, shape.subspan(1));
    }
    if (count != shape.front()) {
      refuse_field(field_, "an array has " + std::string(count > shape.front() ? "more" : "less") + " than " +
                               std::to_string(shape.front()) + " items, which the shape has there");
    }
  }
  void finish() const {
    if (at_ != to_.size()) {
      refuse_field(field_, "has " + std::to_string(at_ / sizeof(T)) + " values, and its shape " +
                               std::to_string(to_.size() / sizeof(T)));
    }
  }

 private:
  void one(const json& value) {
    const auto number = number_of<T>(value);
    if (!number) refuse_field(field_, "value " + std::to_string(at_ / sizeof(T)) + " is no " + std::string(datatype_));
    if (at_ == to_.size())
      refuse_field(field_, "has more than the " + std::to_string(to_.size() / sizeof(T)) + " values of its shape");
    std::memcpy(to_.data() + at_, &*number, sizeof(T));
    at_ += sizeof(T);
  }

  std::span<std::byte> to_;
  std::string field_;
  std::string_view datatype_;
  std::size_t at_ = 0;
};

std::string shape_text(std::span<const std::size_t> shape) {
  std::string text = "[rows";
  for (const std::size_t extent : shape) text += "," + std::to_string(extent);
  return text + "]";
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// More than this would take many times its size while it is read; binary data do not.
constexpr std::size_t most_json = std::size_t{16} << 20;

/// The document; it lives until this thread parses the next one.
json parse_json(std::string_view text) {
  thread_local simdjson::dom::parser parser(most_json);
  json document;
  if (text.size() > most_json)
    throw request_error(413, "body: has more than " + std::to_string(most_json) + " bytes of JSON; send binary data");
  // A copy with zeros behind it: simdjson 3.0 goes on into what lies there after brackets that are not closed.
  const simdjson::padded_string copy(text);
  const auto failed = parser.parse(copy).get(document);
  if (failed != simdjson::SUCCESS)
    refuse_field("body", std::string("is no JSON (") + simdjson::error_message(failed) + ")");
  if (!document.is_object()) refuse_field("body", "is no JSON object");
  return document;
}

/// Nothing for null too: clients write their optional fields so.
std::optional<json> member(const json& object, std::string_view key) {
  json found;
  if (object[key].get(found) != simdjson::SUCCESS || found.is_null()) return std::nullopt;
  return found;
}

template <class T>
T required(const json& object, const char* key, const std::string& field) {
  T value;
  if (object[key].get(value) != simdjson::SUCCESS)
    refuse_field(field, std::is_same_v<T, array> ? "is missing, or no array" : "is missing, or no string");
  return value;
}

void require_form_in_json(const tensor_info& tensor, const std::string& field, const char* instead) {
  if (!with_type(tensor.type, [](auto) {}))
    refuse_field(field, std::string(datatype_of(tensor)) + " has no form in JSON; " + instead);
}

/// parameters.<key>; nothing where there is none.
template <class T>
std::optional<T> parameter_of(const json& object, const char* key, const std::string& field) {
  const auto parameters = member(object, "parameters");
  if (parameters && !parameters->is_object()) refuse_field(field + "parameters", "is no object");
  const auto found = parameters ? member(*parameters, key) : std::nullopt;
  if (!found) return std::nullopt;
  T value{};
  if (found->get(value) != simdjson::SUCCESS)
    refuse_field(field + "parameters." + key, std::is_same_v<T, bool> ? "is neither true nor false" : "is no size");
  return value;
}

void require_rows(std::size_t rows, std::size_t max_rows, const std::string& field) {
  if (rows == 0) refuse_field(field, "has no rows");
  if (rows > max_rows)
    refuse_field(field, "has more than " + std::to_string(max_rows) + " rows, the most of a request; send several");
}

/// Of the shape; how many rows it has.
std::size_t checked_rows(const json& input, const tensor_info& wanted, std::size_t max_rows) {
  std::vector<std::uint64_t> shape;
  for (const json item : required<array>(input, "shape", "inputs[0].shape")) {
    std::uint64_t extent = 0;
    if (item.get(extent) != simdjson::SUCCESS) refuse_field("inputs[0].shape", "has what is no size");
    shape.push_back(extent);
    if (shape.size() > wanted.shape.size() + 1) break;
  }
  bool same = shape.size() == wanted.shape.size() + 1;
  for (std::size_t k = 0; same && k < wanted.shape.size(); ++k) same = shape[k + 1] == wanted.shape[k];
  if (!same)
    refuse_field("inputs[0].shape", "is another one than " + shape_text(wanted.shape) + ", which the model takes");
  require_rows(shape[0], max_rows, "inputs[0].shape");
  return shape[0];
}

/// Rows of fixed size out of the tensor.
void cut_rows(parsed_request& to, std::span<const std::byte> tensor, std::size_t rows, std::size_t row_bytes) {
  for (std::size_t k = 0; k < rows; ++k) to.rows.push_back(tensor.subspan(k * row_bytes, row_bytes));
}

/// Rows that have their length before them, in 32 bits, least byte first.
void cut_strings(parsed_request& to, std::span<const std::byte> tensor, std::size_t rows) {
  detail::wire_reader reader(tensor);
  for (std::size_t k = 0; k < rows; ++k) {
    const auto size = reader.number<std::uint32_t>();
    if (!reader.good()) refuse_field("inputs[0]", "its binary data end before row " + std::to_string(k));
    to.rows.push_back(reader.bytes(size));
    if (!reader.good()) refuse_field("inputs[0]", "row " + std::to_string(k) + " is longer than its binary data");
  }
  if (!reader.is_complete()) refuse_field("inputs[0]", "its binary data go on behind the last row");
}

void take_binary(parsed_request& to, const tensor_info& input, std::span<const std::byte> behind, std::uint64_t size,
                 std::size_t rows) {
  const std::string field = "inputs[0].parameters.binary_data_size";
  if (size != behind.size()) {
    refuse_field(field, "is " + std::to_string(size) + ", and " + std::to_string(behind.size()) +
                            " bytes are behind the JSON (see Inference-Header-Content-Length)");
  }
  if (input.is_bytes) return cut_strings(to, behind, rows);
  if (size != rows * input.row_bytes())
    refuse_field(field, "is " + std::to_string(size) + ", and the shape has " +
                            std::to_string(rows * input.row_bytes()) + " bytes");
  cut_rows(to, behind, rows, input.row_bytes());
}

/// Rows one behind another in `made`, when all are there, because memory moves.
void cut_rows(parsed_request& to, std::span<const std::size_t> ends) {
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    to.rows.push_back(std::span<const std::byte>(to.made).subspan(begin, end - begin));
    begin = end;
  }
}

void take_json(parsed_request& to, const tensor_info& input, const json& data, std::size_t rows) {
  const std::string field = "inputs[0].data";
  if (input.is_bytes) {
    std::vector<std::size_t> ends;
    array items;
    if (data.get(items) != simdjson::SUCCESS) refuse_field(field, "is no array");
    for (const json item : items) {
      std::string_view text;
      if (item.get(text) != simdjson::SUCCESS)
        refuse_field(field, "value " + std::to_string(ends.size()) + " is no string");
      const auto bytes = bytes_of(text);
      to.made.insert(to.made.end(), bytes.begin(), bytes.end());
      ends.push_back(to.made.size());
    }
    if (ends.size() != rows)
      refuse_field(field, "has " + std::to_string(ends.size()) + " values, and its shape " + std::to_string(rows));
    return cut_rows(to, ends);
  }
  to.made.resize(rows * input.row_bytes());
  require_form_in_json(input, field, "send binary data");
  with_type(input.type, [&](auto kind) {
    row_writer<decltype(kind)> writer(to.made, field, datatype_of(input));
    std::vector<std::size_t> shape{rows};
    shape.insert(shape.end(), input.shape.begin(), input.shape.end());
    writer.flat_or_nested(data, shape);
    writer.finish();
  });
  cut_rows(to, to.made, rows, input.row_bytes());
}

bool wants_binary(const json& body, const model_info& model) {
  bool binary = parameter_of<bool>(body, "binary_data_output", "").value_or(false);
  if (!member(body, "outputs")) return binary;
  for (const json output : required<array>(body, "outputs", "outputs")) {
    if (required<std::string_view>(output, "name", "outputs.name") != model.output.name)
      refuse_field("outputs.name", "is no output of the model (it has '" + model.output.name + "')");
    if (parameter_of<std::uint64_t>(output, "classification", "outputs.").value_or(0) > 0)
      refuse_field("outputs.parameters.classification", "is an extension that is not here; ask for the values");
    binary = parameter_of<bool>(output, "binary_data", "outputs.").value_or(binary);
  }
  return binary;
}

}  // namespace

parsed_request parse_infer(std::string_view body, std::size_t json_bytes, const model_info& model,
                           std::size_t max_rows) {
  if (json_bytes > body.size()) {
    refuse_field("Inference-Header-Content-Length",
                 "is " + std::to_string(json_bytes) + ", and the body has " + std::to_string(body.size()) + " bytes");
  }
  const json document = parse_json(body.substr(0, json_bytes));
  const auto behind = bytes_of(body.substr(json_bytes));
  parsed_request made;
  if (member(document, "id")) made.id = required<std::string_view>(document, "id", "id");
  made.is_binary = wants_binary(document, model);
  if (!made.is_binary) require_form_in_json(model.output, "outputs", "ask for binary data");
  const auto inputs = required<array>(document, "inputs", "inputs");
  if (inputs.size() != 1) refuse_field("inputs", "has another number than one, which the model takes");
  const json input = inputs.at(0);
  if (required<std::string_view>(input, "name", "inputs[0].name") != model.input.name)
    refuse_field("inputs[0].name", "is no input of the model (it has '" + model.input.name + "')");
  if (required<std::string_view>(input, "datatype", "inputs[0].datatype") != datatype_of(model.input))
    refuse_field("inputs[0].datatype", "is not " + std::string(datatype_of(model.input)) + ", which the model takes");
  const std::size_t rows = checked_rows(input, model.input, max_rows);
  const auto size = parameter_of<std::uint64_t>(input, "binary_data_size", "inputs[0].");
  const auto data = member(input, "data");
  if (size && data) refuse_field("inputs[0].data", "is there, and binary data too");
  if (size) {
    take_binary(made, model.input, behind, *size, rows);
  } else if (!behind.empty()) {
    refuse_field("inputs[0].parameters.binary_data_size", "is missing, and binary data are behind the JSON");
  } else if (data) {
    take_json(made, model.input, *data, rows);
  } else {
    refuse_field("inputs[0].data", "is missing");
  }
  return made;
}

parsed_request parse_predict(std::string_view body, const model_info& model, std::size_t max_rows) {
  const json document = parse_json(body);
  const auto instances = required<array>(document, "instances", "instances");
  require_form_in_json(model.output, "predictions", "use v2, and ask for binary data");
  const auto& input = model.input;
  parsed_request made;
  std::vector<std::size_t> ends;
  const std::size_t rows = instances.size();
  require_rows(rows, max_rows, "instances");
  made.made.resize(rows * input.row_bytes());
  for (const json instance : instances) {
    const std::string field = "instances[" + std::to_string(ends.size()) + "]";
    if (input.is_bytes) {
      const auto bytes = detail::from_base64(required<std::string_view>(instance, "b64", field + ".b64"));
      if (!bytes) refuse_field(field + ".b64", "is no base64");
      const auto row = std::as_bytes(std::span(*bytes));
      made.made.insert(made.made.end(), row.begin(), row.end());
      ends.push_back(made.made.size());
    } else {
      require_form_in_json(input, field, "use v2 with binary data");
      const auto row = std::span(made.made).subspan(ends.size() * input.row_bytes(), input.row_bytes());
      with_type(input.type, [&](auto kind) {
        row_writer<decltype(kind)>(row, field, datatype_of(input)).nested(instance, input.shape);
      });
      ends.push_back((ends.size() + 1) * input.row_bytes());
    }
  }
  cut_rows(made, ends);
  return made;
}

}}}  // namespace muster::v0::serve
