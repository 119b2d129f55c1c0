#pragma once

#include <muster/data/sources/array_file.hpp>

#include <algorithm>
#include <bit>
#include <iterator>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/data/sources/idx.hpp>
#include <muster/data/sources/npy.hpp>
#include <muster/data/sources/text_format.hpp>  // quoted

namespace muster { inline namespace v0 { namespace data {
namespace detail {

using detail::array_file;
using detail::array_header;

[[noreturn]] inline void refuse_at(const std::string& path, std::uint64_t offset, const std::string& text) {
  throw data_error({path, 0, 0, offset}, text);
}

// Throws unless exactly the number of bytes that the header declares follows the header, and at least one byte.
inline void check_array(const array_header& header, std::span<const std::byte> bytes, const std::string& path) {
  const auto promised = detail::checked_product(size_of(header.type), header.shape);
  const std::uint64_t available = bytes.size() - header.bytes;
  if (!promised || *promised != available) {
    refuse_at(path, header.bytes,
              "has " + std::to_string(available) + " bytes of numbers where its header promises " +
                  (promised ? std::to_string(*promised) : "more than there can be") + "; copy or download it again");
  }
  if (*promised == 0) refuse_at(path, header.bytes, "has no records; check how it was made");
}

// Returns an array as records named `name`. Record i is slice i of the array along its first extent. `labels` is an
// array of shape (n), or of shape (n, k) with k labels for each record, or has no file if the records have no labels.
// `path` and `labels_path` are for errors.
inline fixed_records records_of_array(std::string name, const std::string& field, const array_file& values,
                                      const array_file& labels, const std::string& path,
                                      const std::string& labels_path) {
  const auto& [file, header] = values;
  const std::uint64_t count = header.shape.front();
  record_schema schema{
      record_form::fixed, {{field, header.type, {header.shape.begin() + 1, header.shape.end()}}}, 0, {}};
  const std::vector<record_stretch> records = {{file, header.bytes, schema.record_bytes(), count}};
  std::vector<label_column> columns;
  if (labels.file) {
    const auto& [label_file, label_header] = labels;
    if (label_header.shape.empty() || label_header.shape.size() > 2 || label_header.shape.front() != count) {
      throw data_error({labels_path}, "has " +
                                          std::to_string(label_header.shape.empty() ? 1 : label_header.shape.front()) +
                                          " labels where " + path + " has " + std::to_string(count) +
                                          " records (it has " + std::to_string(label_header.shape.size()) +
                                          " extents, and labels have the shape (n) or (n, k)); name files that belong "
                                          "together");
    }
    const std::uint64_t labels_per_record = label_header.shape.size() == 2 ? label_header.shape[1] : 1;
    const std::uint64_t size = size_of(label_header.type);
    for (std::uint64_t k = 0; k < labels_per_record; ++k) {
      columns.push_back(
          {label_header.type, {{label_file, label_header.bytes + k * size, labels_per_record * size, count}}});
      schema.labels.push_back(labels_per_record == 1 ? "label" : "label" + std::to_string(k));
    }
  }
  return fixed_records(std::move(name), std::move(schema), records, std::move(columns));
}

// Opens a file with one array, and perhaps a file of labels, with the function `open`.
inline fixed_records open_array(const std::string& scheme, const std::string& path, const std::string& labels,
                                const http_options& http,
                                array_file (*open)(const std::string& path, const http_options&)) {
  const array_file values = open(path, http);
  const bool images = scheme == "idx" && values.header.shape.size() == 3;
  return records_of_array(muster::detail::without_secrets(scheme + ":" + path) +
                              (labels.empty() ? "" : "," + muster::detail::without_secrets(labels)),
                          images ? "image" : "values", values, labels.empty() ? array_file() : open(labels, http), path,
                          labels);
}

inline dtype idx_type(unsigned code) {
  constexpr dtype types[] = {dtype::uint8, dtype::int8,    dtype::none,   dtype::int16,
                             dtype::int32, dtype::float32, dtype::float64};  // for the codes 8 to 14
  return code >= 8 && code < 8 + std::size(types) ? types[code - 8] : dtype::none;
}

inline detail::array_file open_idx_file(const std::string& path, const http_options& http) {
  auto file = std::make_shared<const mapped_file>(path, compressed_files::decoded, http);
  detail::array_header header = detail::read_idx_header(file->bytes(), path);
  const std::size_t size = size_of(header.type);
  if (size != 1 && std::endian::native != std::endian::big) {
    const std::string_view text = file->text();
    std::vector<char> swapped(text.begin(), text.end());
    for (auto at = swapped.begin() + static_cast<std::ptrdiff_t>(header.bytes); at != swapped.end();) {
      const auto next = at + static_cast<std::ptrdiff_t>(size);
      std::reverse(at, next);
      at = next;
    }
    file = std::make_shared<const mapped_file>(std::move(swapped), file.get());
  }
  return {std::move(file), std::move(header)};
}

// Converts the header, which is the text of a Python dictionary with three keys, to JSON. An example of a header:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
inline std::string as_json(std::string_view text) {
  std::string json;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("True") || rest.starts_with("False")) {
      json += static_cast<char>(text[at] - 'A' + 'a');
    } else if (text[at] == ',') {
      const auto next = text.find_first_not_of(" \n\t", at + 1);
      const bool last = next != std::string_view::npos && (text[next] == ')' || text[next] == '}');
      if (!last) json += ',';
    } else {
      constexpr std::string_view python = "'()", json_marks = "\"[]";
      const auto found = python.find(text[at]);
      json += found != std::string_view::npos ? json_marks[found] : text[at];
    }
  }
  return json;
}

// The problem of a header, and a suggestion for the user.
struct refusal {
  std::string problem;
  std::string suggestion = "save the array again";
};

inline dtype npy_type(const nlohmann::json& descr) {
  if (descr.is_array()) {
    throw refusal{"is a structured array (its elements are records of their own)",
                  "save each of its fields as an array"};
  }
  const std::string word = descr.is_string() ? descr.get<std::string>() : "";
  constexpr std::pair<std::string_view, dtype> known_types[] = {
      {"b1", dtype::boolean}, {"i1", dtype::int8},    {"u1", dtype::uint8},   {"i2", dtype::int16},
      {"u2", dtype::uint16},  {"i4", dtype::int32},   {"u4", dtype::uint32},  {"i8", dtype::int64},
      {"u8", dtype::uint64},  {"f2", dtype::float16}, {"f4", dtype::float32}, {"f8", dtype::float64}};
  for (const auto& [name, type] : known_types) {
    if (word.size() != 3 || word.substr(1) != name) continue;
    constexpr char native = std::endian::native == std::endian::little ? '<' : '>';
    if (word[0] == native || word[0] == '=' || size_of(type) == 1) return type;
    throw refusal{"has numbers of the other byte order", "save array.astype(array.dtype.newbyteorder('='))"};
  }
  throw refusal{"has elements that are not plain numbers (Python objects, strings, dates, complex numbers)",
                "save an array of integers or floats"};
}

inline detail::array_header parse_header(std::string_view text) {
  int keys = 0;
  const auto count = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& /*parsed*/) {
    keys += depth == 1 && event == nlohmann::json::parse_event_t::key ? 1 : 0;
    return true;
  };
  const auto json = nlohmann::json::parse(as_json(text), count, false);
  if (!json.is_object()) throw refusal{"has a header that is not a Python dictionary"};
  if (!json.contains("descr") || !json.contains("fortran_order") || !json.contains("shape")) {
    throw refusal{"has a header that lacks one of descr, fortran_order and shape"};
  }
  if (keys != 3) throw refusal{"has a header with an unknown or repeated key"};
  detail::array_header header{npy_type(json["descr"]), {}, 0};
  if (!json["fortran_order"].is_boolean()) {
    throw refusal{"has a header whose fortran_order is neither True nor False"};
  }
  const auto& shape = json["shape"];
  if (!shape.is_array() ||
      !std::all_of(shape.begin(), shape.end(), [](const auto& n) { return n.is_number_unsigned(); })) {
    throw refusal{"has a header whose shape is not a list of whole numbers"};
  }
  header.shape = shape.get<std::vector<std::uint64_t>>();
  if (json["fortran_order"].get<bool>() && header.shape.size() > 1) {
    throw refusal{"is in Fortran order (the bytes of a record would not be contiguous)",
                  "save numpy.ascontiguousarray(array)"};
  }
  if (header.shape.empty()) {
    throw refusal{"is a single number (an array of records has at least one extent)", "reshape it"};
  }
  return header;
}

inline detail::array_file open_npy_file(const std::string& path, const http_options& http) {
  auto file = std::make_shared<const mapped_file>(path, compressed_files::as_they_are, http);
  detail::array_header header = detail::read_npy_header(file->bytes(), path);
  return {std::move(file), std::move(header)};
}

}  // namespace detail

MUSTER_INLINE detail::array_header detail::read_idx_header(std::span<const std::byte> bytes, const std::string& path) {
  const auto byte = [&](std::uint64_t at) {
    if (at >= bytes.size()) detail::refuse_at(path, at, "ends within the header of IDX; copy or download it again");
    return static_cast<unsigned>(bytes[at]);
  };
  if (byte(0) != 0 || byte(1) != 0) {
    detail::refuse_at(path, 0, "is not an IDX file (which begins with two zero bytes); check the path");
  }
  array_header header{detail::idx_type(byte(2)), {}, 4};
  if (header.type == dtype::none) {
    detail::refuse_at(path, 2,
                      "has numbers of an unknown type (code " + std::to_string(byte(2)) +
                          ", and IDX has the codes 8, 9 and 11 to 14); check the file");
  }
  const unsigned extents = byte(3);
  if (extents == 0) detail::refuse_at(path, 3, "has no extents (a file of records has at least one); check the file");
  for (unsigned i = 0; i < extents; ++i, header.bytes += 4) {
    std::uint64_t extent = 0;
    for (std::uint64_t k = 0; k < 4; ++k) extent = extent << 8 | byte(header.bytes + k);
    header.shape.push_back(extent);
  }
  detail::check_array(header, bytes, path);
  return header;
}

MUSTER_INLINE fixed_records open_idx(const std::string& path, const std::string& labels, const http_options& http) {
  return detail::open_array("idx", path, labels, http, detail::open_idx_file);
}

MUSTER_INLINE detail::array_header detail::read_npy_header(std::span<const std::byte> bytes, const std::string& path) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr std::string_view magic = "\x93NUMPY";
  if (!text.starts_with(magic))
    detail::refuse_at(path, 0, "is not an NPY file (it does not begin with the signature of NPY); check the path");
  const unsigned version = text.size() > magic.size() ? static_cast<unsigned char>(text[magic.size()]) : 0;
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t begin = magic.size() + 2 + length_bytes;
  if (version < 1 || version > 3)
    detail::refuse_at(path, 6, "has an unknown version of NPY (1 to 3 are known); save the array again");
  if (text.size() < begin) detail::refuse_at(path, text.size(), "ends within its header; copy or download it again");
  std::uint64_t length = 0;
  for (std::size_t k = length_bytes; k > 0; --k) {
    length = length << 8 | static_cast<unsigned char>(text[magic.size() + 1 + k]);
  }
  if (length > text.size() - begin)
    detail::refuse_at(path, text.size(), "ends within its header; copy or download it again");
  array_header header;
  try {
    header = detail::parse_header(text.substr(begin, length));
  } catch (const detail::refusal& refused) {
    detail::refuse_at(path, begin, refused.problem + "; " + refused.suggestion);
  }
  header.bytes = begin + length;
  detail::check_array(header, bytes, path);
  return header;
}

MUSTER_INLINE fixed_records detail::open_named_arrays(const std::string& name, const std::string& path,
                                                      const std::vector<named_array>& arrays, const std::string& values,
                                                      const std::string& labels, const std::string& called) {
  const auto list = [&] {
    constexpr std::size_t most = 8;
    return muster::detail::joined(std::span(arrays).first(std::min(arrays.size(), most)), ", ",
                                  [](const named_array& each) { return detail::quoted(each.name); }) +
           (arrays.size() > most ? ", ..." : "");
  };
  const auto find = [&](const std::string& wanted) {
    const auto found = std::ranges::find(arrays, wanted, &named_array::name);
    if (found == arrays.end())
      throw data_error(
          {path}, "has no " + called + " " + detail::quoted(wanted) + " (it has " + list() + "); name a listed array");
    array_file opened = found->open();
    if (opened.header.type == dtype::none)
      throw data_error({path, 0, 0, opened.header.bytes}, called + " " + detail::quoted(wanted) +
                                                              " has elements that are not numbers " +
                                                              "of this machine; save an array of integers or floats");
    return opened;
  };
  std::string chosen = values;
  if (chosen.empty()) {
    const auto is_other = [&](const named_array& each) { return each.name != labels; };
    if (std::ranges::count_if(arrays, is_other) != 1)
      throw data_error({path}, "has " + std::to_string(arrays.size()) + " " + called + "s (" + list() +
                                   "), and it is not clear which has the records; add ?" + called + "=NAME");
    chosen = std::ranges::find_if(arrays, is_other)->name;
  }
  const array_file records = find(chosen);
  if (records.header.shape.empty() || checked_product(1, records.header.shape) == 0)
    throw data_error({path, 0, 0, records.header.bytes},
                     called + " " + detail::quoted(chosen) + " has no records (its shape has " +
                         (records.header.shape.empty() ? "no extents" : "an extent of 0") + "); name another " +
                         called);
  return records_of_array(muster::detail::without_secrets(name), chosen, records,
                          labels.empty() ? array_file() : find(labels), path + " " + detail::quoted(chosen),
                          path + " " + detail::quoted(labels));
}

MUSTER_INLINE fixed_records open_npy(const std::string& path, const std::string& labels, const http_options& http) {
  return detail::open_array("npy", path, labels, http, detail::open_npy_file);
}

}}}  // namespace muster::v0::data
