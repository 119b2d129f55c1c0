// Writes the bodies of replies.
#include <cstring>

#include "datatypes.hpp"
#include "json_text.hpp"
#include "protocol.hpp"

namespace muster { inline namespace v0 { namespace serve {
namespace {

void append_values(std::string& text, dtype type, std::span<const std::byte> values) {
  with_type(type, [&](auto kind) {
    using T = decltype(kind);
    for (std::size_t at = 0; at < values.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, values.data() + at, sizeof value);
      if (at > 0) text += ',';
      append_number(text, value);
    }
  });
}

// Appends arrays that are nested according to the shape of a row.
void append_nested(std::string& text, dtype type, std::span<const std::size_t> shape,
                   std::span<const std::byte> values) {
  if (shape.empty()) return append_values(text, type, values);
  text += '[';
  if (shape.size() == 1) append_values(text, type, values);
  for (std::size_t k = 0; shape.size() > 1 && k < shape[0]; ++k) {
    if (k > 0) text += ',';
    const std::size_t size = values.size() / shape[0];
    append_nested(text, type, shape.subspan(1), values.subspan(k * size, size));
  }
  text += ']';
}

void append_tensor(std::string& text, const tensor_info& info, std::string_view first) {
  text += "{\"name\":";
  append_string(text, info.name);
  text += ",\"datatype\":\"";
  text += datatype_of(info);
  text += "\",\"shape\":[";
  text += first;
  for (const std::size_t extent : info.shape) text += "," + std::to_string(extent);
  text += ']';
}

void append_names(std::string& text, const std::vector<std::string>& names) {
  text += "\"classes\":[";
  for (std::size_t k = 0; k < names.size(); ++k) {
    if (k > 0) text += ',';
    append_string(text, names[k]);
  }
  text += ']';
}

}  // namespace

std::string write_infer(std::string_view name, std::uint64_t version, const parsed_request& request,
                        const model_info& model, std::span<const std::byte> values) {
  std::string text = "{\"model_name\":";
  append_string(text, name);
  text += ",\"model_version\":\"" + std::to_string(version) + "\"";
  if (!request.id.empty()) {
    text += ",\"id\":";
    append_string(text, request.id);
  }
  text += ",\"outputs\":[";
  append_tensor(text, model.output, std::to_string(request.rows.size()));
  if (request.is_binary || !model.classes.empty()) text += ",\"parameters\":{";
  if (request.is_binary) text += "\"binary_data_size\":" + std::to_string(values.size());
  if (request.is_binary && !model.classes.empty()) text += ',';
  if (!model.classes.empty()) append_names(text, model.classes);
  if (request.is_binary || !model.classes.empty()) text += '}';
  if (!request.is_binary) {
    text += ",\"data\":[";
    append_values(text, model.output.type, values);
    text += ']';
  }
  return text += "}]}";
}

std::string write_predictions(const model_info& model, std::span<const std::byte> values) {
  std::string text = "{\"predictions\":[";
  const std::size_t size = model.output.row_bytes();
  for (std::size_t at = 0; at < values.size(); at += size) {
    if (at > 0) text += ',';
    append_nested(text, model.output.type, model.output.shape, values.subspan(at, size));
  }
  text += ']';
  if (!model.classes.empty()) append_names(text += ',', model.classes);
  return text += '}';
}

std::string write_metadata(std::string_view name, std::uint64_t version, const model_info& model) {
  std::string text = "{\"name\":";
  append_string(text, name);
  text += ",\"versions\":[\"" + std::to_string(version) + "\"],\"platform\":";
  append_string(text, model.platform);
  text += ",\"inputs\":[";
  append_tensor(text, model.input, "-1");
  text += "}],\"outputs\":[";
  append_tensor(text, model.output, "-1");
  if (!model.classes.empty()) append_names(text += ",\"parameters\":{", model.classes);
  return text += model.classes.empty() ? "}]}" : "}}]}";
}

std::string write_error(std::string_view problem) {
  std::string text = "{\"error\":";
  append_string(text, problem);
  return text += '}';
}

}}}  // namespace muster::v0::serve
