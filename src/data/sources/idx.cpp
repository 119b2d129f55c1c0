#include <muster/data/sources/idx.hpp>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include <muster/core/error.hpp>
#include "array_file.hpp"

namespace muster::inline v0 {
namespace {

[[noreturn]] void refuse(const std::string& path, std::uint64_t offset, const std::string& text) {
  throw data_error({path, 0, 0, offset}, text);
}

dtype type_of(unsigned code) {
  constexpr dtype types[] = {dtype::uint8, dtype::int8,    dtype::none,   dtype::int16,
                             dtype::int32, dtype::float32, dtype::float64};  // of 8 to 14
  return code >= 8 && code < 8 + std::size(types) ? types[code - 8] : dtype::none;
}

detail::array_file open_idx_file(const std::string& path) {
  auto file = std::make_shared<const mapped_file>(path);
  detail::array_header header = detail::read_idx_header(file->bytes(), path);
  const std::size_t size = size_of(header.type);
  if (size != 1 && std::endian::native != std::endian::big) {
    const std::string_view text = file->text();
    std::vector<char> turned(text.begin(), text.end());
    for (auto at = turned.begin() + static_cast<std::ptrdiff_t>(header.bytes); at != turned.end();) {
      const auto next = at + static_cast<std::ptrdiff_t>(size);
      std::reverse(at, next);
      at = next;
    }
    file = std::make_shared<const mapped_file>(std::move(turned));
  }
  return {std::move(file), std::move(header)};
}

}  // namespace

detail::array_header detail::read_idx_header(std::span<const std::byte> bytes, const std::string& path) {
  const auto byte = [&](std::uint64_t at) {
    if (at >= bytes.size()) refuse(path, at, "ends within the header of IDX; copy or download it again");
    return static_cast<unsigned>(bytes[at]);
  };
  if (byte(0) != 0 || byte(1) != 0) {
    refuse(path, 0, "is not an IDX file (which begins with two zero bytes); check the path");
  }
  array_header header{type_of(byte(2)), {}, 4};
  if (header.type == dtype::none) {
    refuse(path, 2,
           "has numbers of an unknown type (code " + std::to_string(byte(2)) +
               ", and IDX knows 8, 9 and 11 to 14); check the file");
  }
  const unsigned extents = byte(3);
  if (extents == 0) refuse(path, 3, "has no extents (a file of records has at least one); check the file");
  for (unsigned i = 0; i < extents; ++i, header.bytes += 4) {
    std::uint64_t extent = 0;
    for (std::uint64_t k = 0; k < 4; ++k) extent = extent << 8 | byte(header.bytes + k);
    header.shape.push_back(extent);
  }
  check_array(header, bytes, path);
  return header;
}

fixed_records open_idx(const std::string& path, const std::string& labels) {
  return detail::open_array("idx", path, labels, open_idx_file);
}

}  // namespace muster::inline v0
