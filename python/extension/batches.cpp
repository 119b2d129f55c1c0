// Batches as arrays.
#include <cstring>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <muster/core/error.hpp>

#include "array_argument.hpp"
#include "data_objects.hpp"
#include "module.hpp"

namespace muster::python {
namespace {

nb::object array_over(const std::shared_ptr<batch_memory>& memory, const void* data, std::vector<std::size_t> shape,
                      std::vector<std::int64_t> strides, dtype type) {
  auto* const share = new std::shared_ptr<batch_memory>(memory);
  const nb::capsule owner(share, [](void* held) noexcept { delete static_cast<std::shared_ptr<batch_memory>*>(held); });
  const nb::ndarray<nb::numpy> array(const_cast<void*>(data), shape.size(), shape.data(), owner,
                                     strides.empty() ? nullptr : strides.data(), dlpack_type(type));
  return nb::cast(array);
}

// A place for empty arrays, which have no memory of their own.
const std::byte* nonnull(const void* data) {
  static const std::byte nothing[1] = {};
  return data == nullptr ? nothing : static_cast<const std::byte*>(data);
}

nb::object field_of(const std::shared_ptr<batch_memory>& memory, std::size_t index) {
  const auto& batch = memory->view;
  const data::record_schema& schema = memory->schema;
  const data::record_field& field = schema.fields[index];
  std::size_t offset = 0;
  for (std::size_t k = 0; k < index; ++k) offset += schema.fields[k].bytes();
  const std::size_t record = schema.record_bytes(), element = size_of(field.type);
  if (field.type == dtype::bfloat16 || field.type == dtype::extended) {
    throw configuration_error("numpy has no " + std::string(to_string(field.type)) +
                              " (the batch has it); use torch.from_dlpack(batch) for bfloat16");
  }
  if (record % element != 0) {
    throw configuration_error("the field '" + field.name + "' is not at a multiple of its elements (a record has " +
                              std::to_string(record) + " bytes); add a map that returns one field");
  }
  std::vector<std::size_t> shape{batch.samples.size()};
  std::vector<std::int64_t> strides{static_cast<std::int64_t>(record / element)};
  for (std::size_t k = 0; k < field.shape.size(); ++k) {
    shape.push_back(static_cast<std::size_t>(field.shape[k]));
    std::int64_t step = 1;
    for (std::size_t j = k + 1; j < field.shape.size(); ++j) step *= static_cast<std::int64_t>(field.shape[j]);
    strides.push_back(step);
  }
  return array_over(memory, nonnull(batch.bytes.data()) + (batch.bytes.empty() ? 0 : offset), shape, strides,
                    field.type);
}

void require_form(const batch_memory& memory, data::record_form form, const char* what) {
  if (memory.schema.form == form) return;
  throw configuration_error("a batch of " + to_string(memory.schema) + " has no " + what +
                            " (its records have another form); see batch.schema");
}

nb::object values_of(const batch_object& self) {
  const auto& memory = self.memory;
  if (memory->schema.form == data::record_form::sparse) {
    const auto* const entries = reinterpret_cast<const data::sparse_entry*>(nonnull(memory->view.bytes.data()));
    return array_over(memory, &entries->value, {memory->view.bytes.size() / sizeof(data::sparse_entry)}, {2},
                      dtype::float32);
  }
  require_form(*memory, data::record_form::fixed, "values");
  if (memory->schema.fields.size() != 1) {
    throw configuration_error("a batch of " + to_string(memory->schema) +
                              " has several fields; choose one by batch[\"NAME\"]");
  }
  return field_of(memory, 0);
}

nb::object indices_of(const batch_object& self) {
  require_form(*self.memory, data::record_form::sparse, "indices");
  const auto* const entries = reinterpret_cast<const data::sparse_entry*>(nonnull(self.memory->view.bytes.data()));
  return array_over(self.memory, &entries->index, {self.memory->view.bytes.size() / sizeof(data::sparse_entry)}, {2},
                    dtype::int32);
}

nb::object named_field(const batch_object& self, const std::string& name) {
  require_form(*self.memory, data::record_form::fixed, "fields");
  const auto& fields = self.memory->schema.fields;
  for (std::size_t k = 0; k < fields.size(); ++k) {
    if (fields[k].name == name) return field_of(self.memory, k);
  }
  throw nb::key_error(
      ("the batch has no field '" + name + "' (it has " + to_string(self.memory->schema) + ")").c_str());
}

nb::object record_of(const batch_object& self, std::size_t index) {
  const auto& batch = self.memory->view;
  if (index >= batch.samples.size()) throw nb::index_error("the batch has no such record");
  const auto bytes = batch.record(index);
  return array_over(self.memory, nonnull(bytes.data()), {bytes.size()}, {}, dtype::uint8);
}

nb::object labels_of(const batch_object& self) {
  const auto& batch = self.memory->view;
  const std::size_t width = self.memory->schema.labels.size();
  std::vector<std::size_t> shape{batch.samples.size()};
  if (width != 1) shape.push_back(width);
  return array_over(self.memory, nonnull(batch.labels.data()), shape, {}, dtype::float32);
}

// Exports the values to any library. bfloat16 has no numpy: the array has no framework.
nb::object dlpack_of(const batch_object& self, const nb::kwargs& keywords) {
  const auto& memory = self.memory;
  const bool is_plain = memory->schema.form == data::record_form::fixed && memory->schema.fields.size() == 1 &&
                        memory->schema.fields[0].type == dtype::bfloat16;
  if (!is_plain) return values_of(self).attr("__dlpack__")(**keywords);
  std::vector<std::size_t> shape{memory->view.samples.size()};
  for (const auto extent : memory->schema.fields[0].shape) shape.push_back(static_cast<std::size_t>(extent));
  auto* const share = new std::shared_ptr<batch_memory>(memory);
  const nb::capsule owner(share, [](void* held) noexcept { delete static_cast<std::shared_ptr<batch_memory>*>(held); });
  const nb::ndarray<> array(const_cast<std::byte*>(nonnull(memory->view.bytes.data())), shape.size(), shape.data(),
                            owner, nullptr, dlpack_type(dtype::bfloat16));
  return nb::cast(array).attr("__dlpack__")(**keywords);
}

}  // namespace

void define_batch(nb::module_& module) {
  nb::class_<batch_object>(
      module, "batch_part",
      "A rank's part of a batch. Its arrays are views without a copy, and keep its memory: they stay valid when the "
      "loader goes on. `numpy.asarray(batch)` and `torch.from_dlpack(batch)` take the values.")
      .def("__len__", [](batch_object& self) { return self.memory->view.samples.size(); })
      .def("__getitem__", &named_field, nb::arg("name"), "Returns the field with this name, an array.")
      .def_prop_ro("values", &values_of, "The values of records with one field, or of sparse records.")
      .def_prop_ro("labels", &labels_of, "The labels, float32: one a sample, or a row.")
      .def_prop_ro(
          "samples",
          [](batch_object& self) {
            const auto ids = self.memory->view.samples;
            return array_over(self.memory, nonnull(ids.data()), {ids.size()}, {}, dtype::int64);
          },
          "The numbers of the samples in the source, from 0.")
      .def_prop_ro("indices", &indices_of, "The feature of each value of sparse records.")
      .def_prop_ro(
          "offsets",
          [](batch_object& self) {
            const auto offsets = self.memory->view.offsets;
            return array_over(self.memory, nonnull(offsets.data()), {offsets.size()}, {}, dtype::int64);
          },
          "The first byte of each record, and the end; empty if all records have the same size.")
      .def("record", &record_of, nb::arg("index"), "Returns the bytes of a record, an array of uint8.")
      .def_prop_ro(
          "global_size", [](batch_object& self) { return self.memory->view.global_size; },
          "The number of samples at all ranks together: the divisor for a mean.")
      .def_prop_ro(
          "epoch", [](batch_object& self) { return self.memory->view.epoch; }, "The epoch, from 0.")
      .def_prop_ro(
          "position", [](batch_object& self) { return self.memory->view.position; },
          "The number of samples in the epoch before this batch.")
      .def_prop_ro(
          "left_out", [](batch_object& self) { return self.memory->view.left_out; },
          "The number of bad records in this part that were left out.")
      .def_prop_ro(
          "schema", [](batch_object& self) { return to_string(self.memory->schema); }, "A description of the records.")
      .def(
          "__array__",
          [](batch_object& self, nb::object type, nb::object copy) {
            nb::kwargs words;
            return nb::module_::import_("numpy").attr("array")(
                values_of(self), nb::arg("dtype") = type,
                nb::arg("copy") = nb::object(copy.is_none() ? nb::object(nb::bool_(!type.is_none())) : copy));
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def("__dlpack__", &dlpack_of)
      .def("__dlpack_device__", [](batch_object&) { return nb::make_tuple(1, 0); });
}

}  // namespace muster::python
