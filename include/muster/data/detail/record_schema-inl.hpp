#pragma once

#include <muster/data/record_schema.hpp>

#include <algorithm>

#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace data {

MUSTER_INLINE dtype detail::dtype_named(std::string_view name) noexcept {
  for (int i = 1; i <= static_cast<int>(dtype::extended); ++i) {
    if (to_string(static_cast<dtype>(i)) == name) return static_cast<dtype>(i);
  }
  return dtype::none;
}

MUSTER_INLINE std::optional<std::uint64_t> detail::checked_product(std::uint64_t first,
                                                                   std::span<const std::uint64_t> extents) {
  for (const std::uint64_t extent : extents) {
    if (__builtin_mul_overflow(first, extent, &first)) return std::nullopt;
  }
  return first;
}

MUSTER_INLINE std::string to_string(const record_schema& schema) {
  std::string text;
  const auto add = [&text](const std::string& field) { text.append(text.empty() ? "" : ", ").append(field); };
  if (schema.form == record_form::bytes) add("bytes");
  if (schema.form == record_form::sparse) add("sparse float32 of " + std::to_string(schema.features) + " features");
  for (const record_field& field : schema.fields) {
    const std::string shape =
        muster::detail::joined(field.shape, "x", [](auto extent) { return std::to_string(extent); });
    add(field.name + " " + std::string(to_string(field.type)) + (shape.empty() ? "" : "[" + shape + "]"));
  }
  for (const std::string& label : schema.labels) {
    constexpr std::size_t most = 3;
    const auto listed_classes = std::span(schema.classes).first(std::min(most, schema.classes.size()));
    const bool has_classes = &label == schema.labels.data() && !listed_classes.empty();
    add("label " + label +
        (has_classes ? " of " + std::to_string(schema.classes.size()) + " classes (" +
                           muster::detail::joined(listed_classes, ", ") +
                           (listed_classes.size() < schema.classes.size() ? ", ...)" : ")")
                     : ""));
  }
  return text;
}

}}}  // namespace muster::v0::data
