// Views of batches as tensors of LibTorch.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>
#include <muster/data/minibatch.hpp>
#include <muster/data/record_schema.hpp>

namespace muster { inline namespace v0 { namespace torch {

/// The samples of a part of a batch, and their labels.
struct sample_tensors {
  at::Tensor input;   ///< samples x the shape of the records, in the loader's memory
  at::Tensor target;  ///< a label for each sample, or samples x labels; undefined for records without labels
};

namespace detail {

template <class Label>
concept label_type = std::same_as<Label, std::int64_t> || std::same_as<Label, float>;

[[nodiscard]] inline at::ScalarType scalar_type_of(dtype type, const data::record_field& field) {
  switch (type) {
    case dtype::boolean:
      return at::kBool;
    case dtype::int8:
      return at::kChar;
    case dtype::uint8:
      return at::kByte;
    case dtype::int16:
      return at::kShort;
    case dtype::int32:
      return at::kInt;
    case dtype::int64:
      return at::kLong;
    case dtype::float16:
      return at::kHalf;
    case dtype::bfloat16:
      return at::kBFloat16;
    case dtype::float32:
      return at::kFloat;
    case dtype::float64:
      return at::kDouble;
    default:
      throw mismatch_error("field '" + field.name + "' of a batch has elements of " + std::string(to_string(type)) +
                           " (LibTorch has no such tensors); add a map that converts them");
  }
}

inline void require_fields(const minibatch& batch) {
  if (batch.schema != nullptr && batch.schema->form == data::record_form::fixed) return;
  throw mismatch_error("a batch of " + (batch.schema == nullptr ? "ids alone" : to_string(*batch.schema)) +
                       " has no tensors (they need records with fields of fixed shapes); use record(), or add a map "
                       "that makes such records");
}

// Returns a view of one field of all records, whose first byte is at `offset` of each record.
[[nodiscard]] inline at::Tensor view_of_field(const minibatch& batch, const data::record_field& field,
                                              std::size_t offset) {
  const at::ScalarType type = scalar_type_of(field.type, field);
  std::vector<std::int64_t> sizes{static_cast<std::int64_t>(batch.samples.size())};
  for (const std::uint64_t extent : field.shape) sizes.push_back(static_cast<std::int64_t>(extent));
  if (batch.samples.empty()) return at::empty(sizes, type);
  const std::size_t record = batch.schema->record_bytes(), element = size_of(field.type);
  if (record % element != 0 || offset % element != 0) {
    throw mismatch_error("field '" + field.name + "' of a batch cannot be viewed as a tensor (its " +
                         std::string(to_string(field.type)) + " elements are not aligned in records of " +
                         std::to_string(record) + " bytes); add a map that makes one field");
  }
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t k = sizes.size() - 1; k-- > 1;) strides[k] = strides[k + 1] * sizes[k + 1];
  strides[0] = static_cast<std::int64_t>(record / element);
  auto* const memory = const_cast<std::byte*>(batch.bytes.data() + offset);
  return at::from_blob(memory, sizes, strides, at::TensorOptions(type));
}

}  // namespace detail

/// Returns a view of the field with that name in all records of a batch: samples x its shape. Valid as long as the
/// batch, and not to be written. Throws mismatch_error for records without that field, for elements that LibTorch does
/// not have, and for a field that is not aligned in its records.
[[nodiscard]] inline at::Tensor field(const minibatch& batch, std::string_view name) {
  detail::require_fields(batch);
  std::size_t offset = 0;
  for (const auto& each : batch.schema->fields) {
    if (each.name == name) return detail::view_of_field(batch, each, offset);
    offset += static_cast<std::size_t>(each.bytes());
  }
  throw mismatch_error("a batch of " + to_string(*batch.schema) + " has no field '" + std::string(name) +
                       "' (its records have others); use the name of one");
}

/// Returns the labels of a batch as a new tensor: the classes of the samples (int64), or with `Label` float the labels
/// as they are. Records with several labels give samples x labels. Throws mismatch_error for a label that is no class.
template <detail::label_type Label = std::int64_t>
[[nodiscard]] at::Tensor labels(const minibatch& batch) {
  const auto count = static_cast<std::int64_t>(batch.samples.size());
  const std::int64_t width = batch.schema == nullptr ? 1 : static_cast<std::int64_t>(batch.schema->labels.size());
  if (width == 0) return {};
  at::Tensor result = width == 1 ? at::empty({count}, at::CppTypeToScalarType<Label>::value)
                                 : at::empty({count, width}, at::CppTypeToScalarType<Label>::value);
  auto* const out = static_cast<Label*>(result.data_ptr());
  for (std::size_t k = 0; k < batch.labels.size(); ++k) {
    const float label = batch.labels[k];
    if (std::same_as<Label, std::int64_t> && !(label == std::trunc(label) && std::abs(label) < 9e15f)) {
      throw mismatch_error(
          "the label " + std::to_string(label) + " of sample " +
          std::to_string(batch.samples[k / static_cast<std::size_t>(width)]) +
          " is no class (it is not a whole number); use tensors<float>(batch) for labels that are values");
    }
    out[k] = static_cast<Label>(label);
  }
  return result;
}

/// Returns the records of a batch as a tensor, which copies nothing, and their labels: classes, or with `Label` float
/// values.
///
///     auto [input, target] = muster::torch::tensors(step.next(loader));
///
/// The input is a view of the loader's memory, valid until the loader's `next` moves to another batch, and not to be
/// written. Throws mismatch_error unless the records have one field, and for a label that is no class.
template <class Label = std::int64_t>
[[nodiscard]] sample_tensors tensors(const minibatch& batch) {
  detail::require_fields(batch);
  if (batch.schema->fields.size() != 1) {
    throw mismatch_error(
        "a batch of " + to_string(*batch.schema) +
        " is no single tensor (its records have several fields); use muster::torch::field(batch, name) "
        "and labels(batch)");
  }
  return {detail::view_of_field(batch, batch.schema->fields.front(), 0), labels<Label>(batch)};
}

}}}  // namespace muster::v0::torch
