#include "array_file.hpp"

#include <utility>

#include <muster/core/error.hpp>
#include "../checked_size.hpp"

namespace muster::inline v0::detail {

void check_array(const array_header& header, std::span<const std::byte> bytes, const std::string& path) {
  const auto promised = checked_product(size_of(header.type), header.shape);
  const std::uint64_t there = bytes.size() - header.bytes;
  if (!promised || *promised != there) {
    throw data_error({path, 0, 0, header.bytes}, "has " + std::to_string(there) +
                                                     " bytes of numbers where its header promises " +
                                                     (promised ? std::to_string(*promised) : "more than there can be") +
                                                     "; copy or download it again");
  }
  if (*promised == 0) throw data_error({path, 0, 0, header.bytes}, "has no records; check how it was made");
}

fixed_records open_array(const std::string& scheme, const std::string& path, const std::string& labels,
                         array_file (*open)(const std::string& path)) {
  const auto [file, header] = open(path);
  const std::uint64_t count = header.shape.front();
  const std::vector<std::uint64_t> shape(header.shape.begin() + 1, header.shape.end());
  const bool images = scheme == "idx" && shape.size() == 2;
  record_schema schema{record_form::fixed, {{images ? "image" : "values", header.type, shape}}, 0, {}};
  const std::vector<record_stretch> records = {{file, header.bytes, schema.record_bytes(), count}};
  std::vector<label_column> columns;
  if (!labels.empty()) {
    const auto [label_file, of_labels] = open(labels);
    if (of_labels.shape.size() > 2 || of_labels.shape.front() != count) {
      throw data_error({labels}, "has " + std::to_string(of_labels.shape.front()) + " labels where " + path + " has " +
                                     std::to_string(count) + " records (it has " +
                                     std::to_string(of_labels.shape.size()) +
                                     " extents, and labels have the shape (n) or (n, k)); name files that belong "
                                     "together");
    }
    const std::uint64_t each = of_labels.shape.size() == 2 ? of_labels.shape[1] : 1;
    const std::uint64_t size = size_of(of_labels.type);
    for (std::uint64_t k = 0; k < each; ++k) {
      columns.push_back({of_labels.type, {{label_file, of_labels.bytes + k * size, each * size, count}}});
      schema.labels.push_back(each == 1 ? "label" : "label" + std::to_string(k));
    }
  }
  return fixed_records(scheme + ":" + path + (labels.empty() ? "" : "," + labels), std::move(schema), records,
                       std::move(columns));
}

}  // namespace muster::inline v0::detail
