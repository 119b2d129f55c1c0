#include <muster/data/sources/npy.hpp>

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <muster/core/error.hpp>
#include "array_file.hpp"

namespace muster::inline v0 {
namespace {

// The header is the text of a Python dictionary with three keys, such as
//   {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
// which this writes as JSON does.
std::string as_json(std::string_view text) {
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
      constexpr std::string_view python = "'()", same = "\"[]";
      const auto found = python.find(text[at]);
      json += found != std::string_view::npos ? same[found] : text[at];
    }
  }
  return json;
}

// What is wrong with a header, and what to do about it.
struct refusal {
  std::string problem;
  std::string suggestion = "save the array again";
};

dtype type_of(const nlohmann::json& descr) {
  if (descr.is_array()) {
    throw refusal{"is a structured array (its elements are records of their own)",
                  "save each of its fields as an array"};
  }
  const std::string word = descr.is_string() ? descr.get<std::string>() : "";
  constexpr std::pair<std::string_view, dtype> known[] = {
      {"b1", dtype::boolean}, {"i1", dtype::int8},    {"u1", dtype::uint8},   {"i2", dtype::int16},
      {"u2", dtype::uint16},  {"i4", dtype::int32},   {"u4", dtype::uint32},  {"i8", dtype::int64},
      {"u8", dtype::uint64},  {"f2", dtype::float16}, {"f4", dtype::float32}, {"f8", dtype::float64}};
  for (const auto& [name, type] : known) {
    if (word.size() != 3 || word.substr(1) != name) continue;
    constexpr char native = std::endian::native == std::endian::little ? '<' : '>';
    if (word[0] == native || word[0] == '=' || size_of(type) == 1) return type;
    throw refusal{"has numbers of the other byte order", "save array.astype(array.dtype.newbyteorder('='))"};
  }
  throw refusal{"has elements that are no plain numbers (Python objects, strings, dates, complex numbers)",
                "save an array of integers or floats"};
}

detail::array_header parse_header(std::string_view text) {
  int keys = 0;
  const auto count = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& /*parsed*/) {
    keys += depth == 1 && event == nlohmann::json::parse_event_t::key ? 1 : 0;
    return true;
  };
  const auto json = nlohmann::json::parse(as_json(text), count, false);
  if (!json.is_object()) throw refusal{"has a header that is no dictionary of Python"};
  if (!json.contains("descr") || !json.contains("fortran_order") || !json.contains("shape")) {
    throw refusal{"has a header that lacks one of descr, fortran_order and shape"};
  }
  if (keys != 3) throw refusal{"has a header with an unknown or repeated key"};
  detail::array_header header{type_of(json["descr"]), {}, 0};
  if (!json["fortran_order"].is_boolean()) {
    throw refusal{"has a header whose fortran_order is neither True nor False"};
  }
  const auto& shape = json["shape"];
  if (!shape.is_array() ||
      !std::all_of(shape.begin(), shape.end(), [](const auto& n) { return n.is_number_unsigned(); })) {
    throw refusal{"has a header whose shape is no list of whole numbers"};
  }
  header.shape = shape.get<std::vector<std::uint64_t>>();
  if (json["fortran_order"].get<bool>() && header.shape.size() > 1) {
    throw refusal{"is in Fortran order (records would not lie together)", "save numpy.ascontiguousarray(array)"};
  }
  if (header.shape.empty()) {
    throw refusal{"is a single number (an array of records has at least one extent)", "reshape it"};
  }
  return header;
}

detail::array_file open_npy_file(const std::string& path) {
  auto file = std::make_shared<const mapped_file>(path, compressed_files::as_they_are);
  detail::array_header header = detail::read_npy_header(file->bytes(), path);
  return {std::move(file), std::move(header)};
}

}  // namespace

detail::array_header detail::read_npy_header(std::span<const std::byte> bytes, const std::string& path) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto fail = [&](std::uint64_t offset, const std::string& problem) {
    throw data_error({path, 0, 0, offset}, problem);
  };
  constexpr std::string_view magic = "\x93NUMPY";
  if (!text.starts_with(magic)) fail(0, "is not an NPY file (it does not begin as one); check the path");
  const unsigned version = text.size() > magic.size() ? static_cast<unsigned char>(text[magic.size()]) : 0;
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t begin = magic.size() + 2 + length_bytes;
  if (version < 1 || version > 3) fail(6, "has an unknown version of NPY (1 to 3 are known); save the array again");
  if (text.size() < begin) fail(text.size(), "ends within its header; copy or download it again");
  std::uint64_t length = 0;
  for (std::size_t k = length_bytes; k > 0; --k) {
    length = length << 8 | static_cast<unsigned char>(text[magic.size() + 1 + k]);
  }
  if (length > text.size() - begin) fail(text.size(), "ends within its header; copy or download it again");
  array_header header;
  try {
    header = parse_header(text.substr(begin, length));
  } catch (const refusal& why) {
    fail(begin, why.problem + "; " + why.suggestion);
  }
  header.bytes = begin + length;
  check_array(header, bytes, path);
  return header;
}

fixed_records open_npy(const std::string& path, const std::string& labels) {
  return detail::open_array("npy", path, labels, open_npy_file);
}

}  // namespace muster::inline v0
