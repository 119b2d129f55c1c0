#pragma once

#include <muster/data/sources/safetensors.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/core/wire.hpp>
#include <muster/data/sources/array_file.hpp>
#include <muster/data/sources/text_format.hpp>  // quoted

namespace muster { inline namespace v0 { namespace data {
namespace detail {

static_assert(std::endian::native == std::endian::little, "safetensors has little-endian values");

struct safetensors_type {
  std::string_view written;
  dtype type;
  std::uint64_t bytes;
};
inline constexpr safetensors_type safetensors_types[] = {
    {"F32", dtype::float32, 4},  {"F16", dtype::float16, 2},  {"BF16", dtype::bfloat16, 2}, {"F64", dtype::float64, 8},
    {"I64", dtype::int64, 8},    {"I32", dtype::int32, 4},    {"I16", dtype::int16, 2},     {"I8", dtype::int8, 1},
    {"U64", dtype::uint64, 8},   {"U32", dtype::uint32, 4},   {"U16", dtype::uint16, 2},    {"U8", dtype::uint8, 1},
    {"BOOL", dtype::boolean, 1}, {"F8_E4M3", dtype::none, 1}, {"F8_E5M2", dtype::none, 1},  {"F8_E8M0", dtype::none, 1},
    {"C64", dtype::none, 8}};

inline constexpr std::uint64_t safetensors_length_bytes = 8;
inline constexpr std::uint64_t most_safetensors_header = 100'000'000;  // the limit of the format

/// The problem of a header.
struct safetensors_refusal {
  std::string problem;
  std::uint64_t offset;  // in the header
};

/// A receiver of the events of the JSON parser. The receiver keeps no document: a hostile header costs the memory of
/// its tensors alone.
class safetensors_events : public nlohmann::json_sax<nlohmann::json> {
 public:
  safetensors_header header;
  std::string problem;  // empty: none
  std::size_t at = 0;   // byte after the problem, if the JSON is malformed

  bool null() override { return refuse("has null"); }
  bool boolean(bool) override { return refuse("has true or false"); }
  bool number_integer(number_integer_t) override { return refuse("has a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("has a number that is not whole"); }
  bool binary(binary_t&) override { return refuse("has bytes"); }
  bool number_unsigned(number_unsigned_t number) override {
    if (depth_ != 3 || (field_ != "shape" && field_ != "data_offsets")) return refuse("has a number");
    (field_ == "shape" ? header.tensors.back().shape : offsets_).push_back(number);
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) {
      header.metadata[field_] = text;
      return true;
    }
    if (depth_ != 2 || field_ != "dtype") return refuse("has a text");
    safetensor& tensor = header.tensors.back();
    const auto* const found = std::ranges::find(safetensors_types, text, &safetensors_type::written);
    if (found == std::end(safetensors_types)) return refuse("has elements of the unknown type " + detail::quoted(text));
    tensor.type = found->type;
    tensor.written = text;
    element_bytes_ = found->bytes;
    return true;
  }
  bool start_object(std::size_t) override {
    if (++depth_ > 2) return refuse("has an object");
    return true;
  }
  bool start_array(std::size_t) override {
    if (++depth_ != 3 || in_metadata_ || field_ == "dtype") return refuse("has an array");
    return true;
  }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    if (depth_ == 2) {
      field_ = name;
      if (!fields_.insert(name).second) return refuse("has " + detail::quoted(name) + " twice");
      return in_metadata_ || name == "dtype" || name == "shape" || name == "data_offsets" ||
             refuse("has the unknown key " + detail::quoted(name));
    }
    tensor_ = name;
    if (!names_.insert(name).second) return refuse("is in the header twice");
    fields_.clear();
    offsets_.clear();
    in_metadata_ = name == "__metadata__";
    if (!in_metadata_) header.tensors.emplace_back().name = name;
    return true;
  }
  bool end_object() override {
    if (--depth_ != 1 || in_metadata_) return true;
    safetensor& tensor = header.tensors.back();
    if (fields_.size() != 3) return refuse("lacks one of dtype, shape and data_offsets");
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) return refuse("has data_offsets that are no range");
    tensor.offset = offsets_[0];
    tensor.size = offsets_[1] - offsets_[0];
    const auto size = checked_product(element_bytes_, tensor.shape);
    if (size == tensor.size) return true;
    return refuse("has " + std::to_string(tensor.size) + " bytes where its shape and type need " +
                  (size ? std::to_string(*size) : "more than there can be"));
  }
  bool parse_error(std::size_t place, const std::string&, const nlohmann::json::exception&) override {
    at = place;
    problem = "has a header that is not JSON";
    return false;
  }

 private:
  bool refuse(const std::string& reason) {
    problem = (names_.empty() ? "has a header that " : "tensor " + detail::quoted(tensor_) + " ") + reason;
    return false;
  }

  int depth_ = 0;
  bool in_metadata_ = false;
  std::string tensor_, field_;
  std::set<std::string> names_, fields_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t element_bytes_ = 0;
};

/// Checks that the values of the tensors fill the rest of the file, and moves their offsets behind the header.
inline void place_safetensors(safetensors_header& header, std::uint64_t begin, std::uint64_t available,
                              const std::string& path) {
  std::ranges::stable_sort(header.tensors, {},
                           [](const safetensor& each) { return std::pair(each.offset, each.size); });
  std::uint64_t end = 0;
  const auto refuse = [&](const std::string& problem) {
    throw data_error({path, 0, 0, begin + std::min(end, available)}, problem + "; copy, download or write it again");
  };
  for (safetensor& tensor : header.tensors) {
    if (tensor.offset != end)
      refuse("tensor " + detail::quoted(tensor.name) + " begins at byte " + std::to_string(tensor.offset) +
             " of the values " + (tensor.offset < end ? "within the tensor before it" : "after a gap") +
             " (the values before it end at " + std::to_string(end) + ")");
    if (tensor.size > available - end)
      refuse("tensor " + detail::quoted(tensor.name) + " ends beyond the file (it has " + std::to_string(tensor.size) +
             " bytes, and " + std::to_string(available - end) + " are left)");
    tensor.offset += begin;
    end += tensor.size;
  }
  if (end != available)
    refuse("has " + std::to_string(available - end) + " bytes after its last tensor (the header does not name them)");
}

inline const safetensor& tensor_of(const safetensors_header& header, std::string_view name, const std::string& path) {
  const auto found = std::ranges::find(header.tensors, name, &safetensor::name);
  if (found != header.tensors.end()) return *found;
  std::vector<std::string> names;
  for (const safetensor& each : header.tensors) names.push_back(each.name);
  const auto meant = closest(name, names);
  throw data_error({path}, "has no tensor " + detail::quoted(name) + " (it has " + std::to_string(names.size()) +
                               " tensors); " +
                               (meant ? "did you mean " + detail::quoted(*meant) + "?" : "name a tensor of the file"));
}

}  // namespace detail

MUSTER_INLINE detail::safetensors_header detail::read_safetensors_header(std::span<const std::byte> bytes,
                                                                         const std::string& path) {
  const auto refuse = [&](std::uint64_t offset, const std::string& problem) {
    throw data_error({path, 0, 0, std::min<std::uint64_t>(offset, bytes.size())}, problem);
  };
  if (bytes.size() < safetensors_length_bytes)
    refuse(bytes.size(), "ends within the length of its header; copy or download it again");
  const auto length = muster::detail::wire_reader(bytes).number<std::uint64_t>();
  const std::uint64_t rest = bytes.size() - safetensors_length_bytes;
  if (length > most_safetensors_header)
    refuse(0, "has a header of " + std::to_string(length) + " bytes (at most " +
                  std::to_string(most_safetensors_header) +
                  " are allowed: this is not a safetensors file); check the path");
  if (length > rest)
    refuse(bytes.size(), "ends within its header of " + std::to_string(length) + " bytes; copy or download it again");
  const auto* const text = reinterpret_cast<const char*>(bytes.data()) + safetensors_length_bytes;
  if (length < 2 || *text != '{')
    refuse(safetensors_length_bytes,
           "is not a safetensors file (its header does not begin with a brace); check the path");
  safetensors_events events;
  if (!nlohmann::json::sax_parse(text, text + length, &events))
    refuse(safetensors_length_bytes + events.at, events.problem + " (the header is wrong); write the file again");
  const std::uint64_t begin = safetensors_length_bytes + length;
  place_safetensors(events.header, begin, bytes.size() - begin, path);
  return std::move(events.header);
}

MUSTER_INLINE safetensors_file::safetensors_file(const std::string& path, const http_options& http)
    : file_(std::make_shared<const mapped_file>(path, compressed_files::as_they_are, http)),
      header_(detail::read_safetensors_header(file_->bytes(), path)) {}

MUSTER_INLINE const safetensor& safetensors_file::tensor(std::string_view name) const {
  return detail::tensor_of(header_, name, file_->path());
}

MUSTER_INLINE void safetensors_file::read(std::string_view name, std::span<const std::uint64_t> shape,
                                          std::span<float> output) const {
  const safetensor& found = tensor(name);
  const auto text = [](std::span<const std::uint64_t> extents) {
    return "[" + muster::detail::joined(extents, "x", [](std::uint64_t extent) { return std::to_string(extent); }) +
           "]";
  };
  if (!std::ranges::equal(found.shape, shape) || found.elements() != output.size())
    throw data_error({file_->path(), 0, 0, found.offset}, "tensor " + detail::quoted(name) + " has the shape " +
                                                              text(found.shape) + " (the shape " + text(shape) +
                                                              " is required); use the file of the same model");
  if (found.type != dtype::float32 && found.type != dtype::float16 && found.type != dtype::bfloat16)
    throw data_error({file_->path(), 0, 0, found.offset},
                     "tensor " + detail::quoted(name) + " has elements of " + found.written +
                         " (a float32 does not hold all of them); save it as F32, F16 or BF16");
  const auto bytes = values(found);
  if (found.type == dtype::float32) {
    if (!bytes.empty()) std::memcpy(output.data(), bytes.data(), bytes.size());
    return;
  }
  const auto convert = detail::float_reader(found.type);
  for (std::size_t k = 0; k < output.size(); ++k) output[k] = convert(bytes.data() + k * size_of(found.type));
}

MUSTER_INLINE void write_safetensors(const std::string& path, std::span<const tensor_view> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  std::vector<const tensor_view*> order;
  for (const tensor_view& tensor : tensors) order.push_back(&tensor);
  std::ranges::stable_sort(order, std::ranges::greater(), [](const auto* each) { return size_of(each->type); });
  auto head = nlohmann::ordered_json::object();
  if (!metadata.empty()) head["__metadata__"] = metadata;
  std::uint64_t end = 0;
  for (const tensor_view* tensor : order) {
    const auto* const known =
        std::ranges::find(detail::safetensors_types, tensor->type, &detail::safetensors_type::type);
    const auto bytes = detail::checked_product(size_of(tensor->type), tensor->shape);
    const bool is_known = tensor->type != dtype::none && known != std::end(detail::safetensors_types);
    if (!is_known || bytes != tensor->values.size() || tensor->name == "__metadata__" || head.contains(tensor->name))
      throw configuration_error("tensor '" + tensor->name + "' cannot be written to " + path +
                                (!is_known ? " (the format has no type " + std::string(to_string(tensor->type))
                                 : bytes != tensor->values.size() ? " (its values do not fit its shape"
                                                                  : " (the name is taken") +
                                "); correct the tensor");
    head[tensor->name] = {{"dtype", known->written}, {"shape", tensor->shape}, {"data_offsets", {end, end + *bytes}}};
    end += *bytes;
  }
  std::string text = head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // aligns the values
  const std::uint64_t length = text.size();
  atomic_file file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const tensor_view* tensor : order) file.write(tensor->values);
  file.commit();
}

MUSTER_INLINE fixed_records open_safetensors(const std::string& path, const std::string& tensor,
                                             const std::string& labels, const http_options& http) {
  const safetensors_file file(path, http);
  std::vector<detail::named_array> arrays;
  for (const safetensor& each : file.tensors())
    arrays.push_back({each.name, [&file, &each]() -> detail::array_file {
                        return {file.file(), {each.type, each.shape, each.offset}};
                      }});
  return detail::open_named_arrays("safetensors:" + path, path, arrays, tensor, labels, "tensor");
}

}}}  // namespace muster::v0::data
