// The bodies of requests.
#include "protocol.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include <simdjson.h>

#include "base64.hpp"
#include "datatypes.hpp"

namespace muster::inline v0::serve {
namespace {

using json = simdjson::dom::element;

[[noreturn]] void refuse_field(const std::string& field, const std::string& problem) {
  throw request_error(400, field + ": " + problem);
}

/// The value as a T; nothing if it is none.
template <class T>
std::optional<T> number_of(const json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    bool found = false;
    if (value.get(found) == simdjson::SUCCESS) return found;
  } else if constexpr (std::is_floating_point_v<T>) {
    double found = 0;
    if (value.get(found) == simdjson::SUCCESS && std::abs(found) <= std::numeric_limits<T>::max())
      return static_cast<T>(found);
  } else if constexpr (std::is_signed_v<T>) {
    std::int64_t found = 0;
    if (value.get(found) == simdjson::SUCCESS && std::in_range<T>(found)) return static_cast<T>(found);
  } else {
    std::uint64_t found = 0;
    if (value.get(found) == simdjson::SUCCESS && std::in_range<T>(found)) return static_cast<T>(found);
  }
  return std::nullopt;
}

/// A row of T that is filled from JSON.
template <class T>
class row_writer {
 public:
  row_writer(std::span<std::byte> to, std::string field, std::string_view datatype)
      : to_(to), field_(std::move(field)), datatype_(datatype) {}

  /// All numbers of arrays in arrays, however they are nested.
  void flat(const json& value) {
    simdjson::dom::array items;
    if (value.get(items) != simdjson::SUCCESS) return one(value);
    for (const json item : items) flat(item);
  }
  /// Arrays nested as the shape says.
  void nested(const json& value, std::span<const std::size_t> shape) {
    if (shape.empty()) return one(value);
    simdjson::dom::array items;
    if (value.get(items) != simdjson::SUCCESS)
      refuse_field(field_, "has too few dimensions (an array of " + std::to_string(shape.front()) + " is missing)");
    std::size_t count = 0;
    for (const json item : items) {
      if (++count > shape.front()) break;
      nested(item, shape.subspan(1));
    }
    if (count != shape.front()) {
      refuse_field(field_, "an array has " + std::string(count > shape.front() ? "more" : "less") + " than " +
                               std::to_string(shape.front()) + " items, which the model's shape has there");
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

std::optional<json> member(const json& object, std::string_view key) {
  json found;
  if (object[key].get(found) != simdjson::SUCCESS) return std::nullopt;
  return found;
}

std::string_view text_at(const json& object, const char* key, const std::string& field) {
  std::string_view text;
  const auto found = member(object, key);
  if (!found || found->get(text) != simdjson::SUCCESS) refuse_field(field, "is missing, or no string");
  return text;
}

simdjson::dom::array array_at(const json& object, const char* key, const std::string& field) {
  simdjson::dom::array items;
  const auto found = member(object, key);
  if (!found || found->get(items) != simdjson::SUCCESS) refuse_field(field, "is missing, or no array");
  return items;
}

void require_form_in_json(const tensor_info& tensor, const std::string& field, const char* instead) {
  if (!with_type(tensor.type, [](auto) {}))
    refuse_field(field, std::string(datatype_of(tensor)) + " has no form in JSON; " + instead);
}

/// parameters.<key>; nothing where there is none.
template <class T>
std::optional<T> parameter_of(const json& object, const char* key, const std::string& field) {
  const auto parameters = member(object, "parameters");
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

void check_shape(const json& input, const tensor_info& wanted, std::size_t max_rows, std::size_t& rows) {
  std::vector<std::uint64_t> shape;
  for (const json item : array_at(input, "shape", "inputs[0].shape")) {
    std::uint64_t extent = 0;
    if (item.get(extent) != simdjson::SUCCESS) refuse_field("inputs[0].shape", "has what is no size");
    shape.push_back(extent);
    if (shape.size() > wanted.shape.size() + 1) break;
  }
  bool same = shape.size() == wanted.shape.size() + 1;
  for (std::size_t k = 0; same && k < wanted.shape.size(); ++k) same = shape[k + 1] == wanted.shape[k];
  if (!same)
    refuse_field("inputs[0].shape", "is another one than " + shape_text(wanted.shape) + ", which the model takes");
  rows = shape[0];
  require_rows(rows, max_rows, "inputs[0].shape");
}

/// Rows of fixed size out of the tensor.
void cut_rows(parsed_request& to, std::span<const std::byte> tensor, std::size_t rows, std::size_t row_bytes) {
  for (std::size_t k = 0; k < rows; ++k) to.rows.push_back(tensor.subspan(k * row_bytes, row_bytes));
}

/// Rows that have their length before them, in 32 bits, least byte first.
void cut_strings(parsed_request& to, std::span<const std::byte> tensor, std::size_t rows) {
  for (std::size_t k = 0; k < rows; ++k) {
    if (tensor.size() < 4) refuse_field("inputs[0]", "its binary data end before row " + std::to_string(k));
    std::size_t size = 0;
    for (std::size_t b = 0; b < 4; ++b) size |= std::to_integer<std::size_t>(tensor[b]) << (8 * b);
    tensor = tensor.subspan(4);
    if (size > tensor.size()) refuse_field("inputs[0]", "row " + std::to_string(k) + " is longer than its binary data");
    to.rows.push_back(tensor.first(size));
    tensor = tensor.subspan(size);
  }
  if (!tensor.empty()) refuse_field("inputs[0]", "its binary data go on behind the last row");
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

/// Strings one behind another; the rows are cut when all are there, because memory moves.
class string_rows {
 public:
  explicit string_rows(parsed_request& to) : to_(to) {}
  std::vector<std::byte>& bytes() { return to_.made; }
  void end_row() { ends_.push_back(to_.made.size()); }
  [[nodiscard]] std::size_t count() const noexcept { return ends_.size(); }
  void cut() {
    std::size_t begin = 0;
    for (const std::size_t end : ends_) {
      to_.rows.push_back(std::span<const std::byte>(to_.made).subspan(begin, end - begin));
      begin = end;
    }
  }

 private:
  parsed_request& to_;
  std::vector<std::size_t> ends_;
};

void take_json(parsed_request& to, const tensor_info& input, const json& data, std::size_t rows) {
  const std::string field = "inputs[0].data";
  if (input.is_bytes) {
    string_rows made(to);
    simdjson::dom::array items;
    if (data.get(items) != simdjson::SUCCESS) refuse_field(field, "is no array");
    for (const json item : items) {
      std::string_view text;
      if (item.get(text) != simdjson::SUCCESS)
        refuse_field(field, "value " + std::to_string(made.count()) + " is no string");
      const auto bytes = bytes_of(text);
      made.bytes().insert(made.bytes().end(), bytes.begin(), bytes.end());
      made.end_row();
    }
    if (made.count() != rows)
      refuse_field(field, "has " + std::to_string(made.count()) + " values, and its shape " + std::to_string(rows));
    return made.cut();
  }
  to.made.resize(rows * input.row_bytes());
  require_form_in_json(input, field, "send binary data");
  with_type(input.type, [&](auto kind) {
    row_writer<decltype(kind)> writer(to.made, field, datatype_of(input));
    writer.flat(data);
    writer.finish();
  });
  cut_rows(to, to.made, rows, input.row_bytes());
}

bool wants_binary(const json& body, const model_info& model) {
  bool binary = parameter_of<bool>(body, "binary_data_output", "").value_or(false);
  if (!member(body, "outputs")) return binary;
  for (const json output : array_at(body, "outputs", "outputs")) {
    if (text_at(output, "name", "outputs.name") != model.output.name)
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
  if (member(document, "id")) made.id = text_at(document, "id", "id");
  made.is_binary = wants_binary(document, model);
  if (!made.is_binary) require_form_in_json(model.output, "outputs", "ask for binary data");
  const auto inputs = array_at(document, "inputs", "inputs");
  if (inputs.size() != 1) refuse_field("inputs", "has another number than one, which the model takes");
  const json input = inputs.at(0);
  if (text_at(input, "name", "inputs[0].name") != model.input.name)
    refuse_field("inputs[0].name", "is no input of the model (it has '" + model.input.name + "')");
  if (text_at(input, "datatype", "inputs[0].datatype") != datatype_of(model.input))
    refuse_field("inputs[0].datatype", "is not " + std::string(datatype_of(model.input)) + ", which the model takes");
  std::size_t rows = 0;
  check_shape(input, model.input, max_rows, rows);
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
  const auto instances = array_at(document, "instances", "instances");
  require_form_in_json(model.output, "predictions", "use v2, and ask for binary data");
  const auto& input = model.input;
  parsed_request made;
  string_rows strings(made);
  const std::size_t rows = instances.size();
  require_rows(rows, max_rows, "instances");
  made.made.resize(rows * input.row_bytes());
  std::size_t k = 0;
  for (const json instance : instances) {
    const std::string field = "instances[" + std::to_string(k) + "]";
    if (input.is_bytes) {
      if (!decode_base64(text_at(instance, "b64", field + ".b64"), made.made))
        refuse_field(field + ".b64", "is no base64");
      strings.end_row();
    } else {
      require_form_in_json(input, field, "use v2 with binary data");
      with_type(input.type, [&](auto kind) {
        const auto row = std::span(made.made).subspan(k * input.row_bytes(), input.row_bytes());
        row_writer<decltype(kind)>(row, field, datatype_of(input)).nested(instance, input.shape);
      });
    }
    ++k;
  }
  if (input.is_bytes) {
    strings.cut();
  } else {
    cut_rows(made, made.made, rows, input.row_bytes());
  }
  return made;
}

}  // namespace muster::inline v0::serve
