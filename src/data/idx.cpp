#include <muster/data/idx.hpp>

#include <algorithm>
#include <bit>
#include <utility>

#include <muster/core/error.hpp>
#include "checked_size.hpp"

namespace muster::inline v0 {
namespace {

[[noreturn]] void refuse(const std::string& path, std::uint64_t offset, const std::string& text) {
  throw data_error({path, 0, 0, offset}, text);
}

dtype type_of(unsigned code) {
  switch (code) {
    case 0x08:
      return dtype::uint8;
    case 0x09:
      return dtype::int8;
    case 0x0b:
      return dtype::int16;
    case 0x0c:
      return dtype::int32;
    case 0x0d:
      return dtype::float32;
    case 0x0e:
      return dtype::float64;
    default:
      return dtype::none;
  }
}

struct idx_file {
  explicit idx_file(const std::string& path)
      : file(std::make_shared<const text_file>(path)), header(read_idx_header(file->bytes(), path)) {
    const std::size_t size = size_of(header.type);
    if (size == 1 || std::endian::native == std::endian::big) return;
    const std::string_view text = file->text();
    std::vector<char> turned(text.begin(), text.end());
    for (std::size_t at = header.bytes; at < turned.size(); at += size) {
      std::reverse(turned.begin() + static_cast<std::ptrdiff_t>(at),
                   turned.begin() + static_cast<std::ptrdiff_t>(at + size));
    }
    file = std::make_shared<const text_file>(std::move(turned));
  }
  record_stretch stretch(std::uint64_t item_bytes) const {
    return {file, header.bytes, item_bytes, header.shape.front()};
  }
  std::shared_ptr<const text_file> file;
  idx_header header;
};

}  // namespace

idx_header read_idx_header(std::span<const std::byte> bytes, const std::string& path) {
  const auto byte = [&](std::uint64_t at) {
    if (at >= bytes.size()) refuse(path, at, "ends within the header of IDX; copy or download it again");
    return static_cast<unsigned>(bytes[at]);
  };
  if (byte(0) != 0 || byte(1) != 0) {
    refuse(path, 0, "is not an IDX file (which begins with two zero bytes); check the path");
  }
  idx_header header{type_of(byte(2)), {}, 4};
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
  const auto promised = detail::checked_product(size_of(header.type), header.shape);
  const std::uint64_t there = bytes.size() - header.bytes;
  if (!promised || *promised != there) {
    refuse(path, header.bytes,
           "has " + std::to_string(there) + " bytes of numbers where its header promises " +
               (promised ? std::to_string(*promised) : "more than there can be") + "; copy or download it again");
  }
  if (*promised == 0) refuse(path, 4, "has no records; check how it was made");
  return header;
}

fixed_records open_idx(const std::string& path, const std::string& labels) {
  const idx_file data(path);
  std::vector<std::uint64_t> shape(data.header.shape.begin() + 1, data.header.shape.end());
  std::string name = "idx:" + path;
  record_schema schema{record_form::fixed, {{shape.size() == 2 ? "image" : "values", data.header.type, shape}}, 0, {}};
  std::vector<label_column> columns;
  if (!labels.empty()) {
    const idx_file file(labels);
    if (file.header.shape.size() != 1) {
      refuse(labels, 3,
             "has " + std::to_string(file.header.shape.size()) +
                 " extents (labels have one, a number for each record); name the file of labels");
    }
    if (file.header.shape.front() != data.header.shape.front()) {
      refuse(labels, 4,
             "has " + std::to_string(file.header.shape.front()) + " labels where " + path + " has " +
                 std::to_string(data.header.shape.front()) + " records; name files that belong together");
    }
    columns.push_back({file.header.type, {file.stretch(size_of(file.header.type))}});
    schema.labels = {"label"};
    name += "," + labels;
  }
  const std::uint64_t item_bytes = schema.record_bytes();
  return fixed_records(std::move(name), std::move(schema), {data.stretch(item_bytes)}, std::move(columns));
}

}  // namespace muster::inline v0
