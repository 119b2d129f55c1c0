#pragma once

#include <muster/data/sources/raw.hpp>

#include <algorithm>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {

MUSTER_INLINE fixed_records open_raw(const std::vector<std::string>& paths, const raw_layout& layout) {
  std::string name = "raw:";
  for (const std::string& path : paths) name += (name.size() > 4 ? "," : "") + path;
  return detail::open_raw(std::move(name), "values", paths, layout);
}

MUSTER_INLINE fixed_records detail::open_raw(std::string name, const std::string& features,
                                             const std::vector<std::string>& paths, const raw_layout& layout) {
  const auto refuse = [&](const std::string& problem) {
    throw configuration_error("the layout of '" + name + "' " + problem);
  };
  const auto end_of = [&](std::uint64_t offset, std::uint64_t bytes) {
    std::uint64_t end = 0;
    if (__builtin_add_overflow(offset, bytes, &end)) refuse("does not fit into 64 bits; correct the offsets");
    return end;
  };
  const auto bytes = detail::checked_product(size_of(layout.type), layout.shape);
  if (!bytes || *bytes == 0) refuse("has features without bytes, or too many; set a type and a shape such as 3x32x32");
  std::uint64_t end = end_of(layout.offset, *bytes);
  for (const auto& label : layout.labels) end = std::max(end, end_of(label.offset, size_of(label.type)));
  const std::uint64_t stride = layout.record_bytes != 0 ? layout.record_bytes : end;
  if (stride < end) {
    refuse("needs " + std::to_string(end) + " bytes but its records have " + std::to_string(stride) +
           "; correct the size of the record");
  }

  record_schema schema{record_form::fixed, {{features, layout.type, layout.shape}}, 0, {}};
  std::vector<record_stretch> records;
  std::vector<label_column> labels;
  for (const auto& label : layout.labels) {
    schema.labels.push_back(label.name);
    labels.push_back({label.type, {}});
  }
  for (const std::string& path : paths) {
    const record_stretch stretch = detail::stretch_of_file(path, layout.skip, stride, layout.count);
    const auto part_at = [&](std::uint64_t offset) {
      return record_stretch{stretch.file, layout.skip + offset, stride, stretch.count};
    };
    records.push_back(part_at(layout.offset));
    for (std::size_t k = 0; k < labels.size(); ++k) labels[k].stretches.push_back(part_at(layout.labels[k].offset));
  }
  return fixed_records(std::move(name), std::move(schema), std::move(records), std::move(labels));
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
