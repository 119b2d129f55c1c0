#include "python_transform.hpp"

#include <nanobind/ndarray.h>

#include <muster/core/error.hpp>

#include "array_argument.hpp"

namespace muster::python {
namespace {

// Returns an array of numpy: a copy, or a view of memory that exists during the call.
nb::object array_of(const data::record_field& field, const std::byte* memory, nb::rv_policy policy) {
  const std::vector<std::size_t> shape(field.shape.begin(), field.shape.end());
  const nb::ndarray<nb::numpy> array(const_cast<std::byte*>(memory), shape.size(), shape.data(), nb::handle(), nullptr,
                                     dlpack_type(field.type));
  return nb::cast(array, policy);
}

}  // namespace

python_transform::python_transform(nb::object function, std::optional<std::vector<std::uint64_t>> shape,
                                   std::optional<std::string> type, std::uint64_t version)
    : function_(new nb::object(std::move(function)),
                [](nb::object* held) {
                  const nb::gil_scoped_acquire lock;
                  delete held;
                }),
      shape_(std::move(shape)),
      type_(std::move(type)),
      version_(version) {}

data::record_schema python_transform::output(const data::record_schema& in) {
  const bool has_one_field = in.form == data::record_form::fixed && in.fields.size() == 1;
  if (in.form == data::record_form::sparse || (in.form == data::record_form::fixed && !has_one_field)) {
    throw configuration_error("a function in Python cannot map records of " + to_string(in) +
                              " (it takes bytes, or records with one field); choose another source");
  }
  if (in.form == data::record_form::bytes && (!shape_ || !type_)) {
    throw configuration_error(
        "a function in Python that maps records of bytes needs the shape and the type of its "
        "results (they do not follow from the input); pass shape=(...) and dtype=\"float32\"");
  }
  input_ = in;
  result_ = has_one_field ? in.fields[0] : data::record_field{.name = "value"};
  if (shape_) result_.shape = *shape_;
  if (type_) result_.type = muster::data::detail::dtype_named(*type_);
  if (result_.type == dtype::none || result_.type == dtype::bfloat16 || result_.type == dtype::extended) {
    throw configuration_error("the results of a function in Python cannot be " + type_.value_or("of this type") +
                              " (numpy has no such type); choose float32, uint8 or another type of numpy");
  }
  return {data::record_form::fixed, {result_}, 0, in.labels, in.classes};
}

void python_transform::operator()(std::span<const std::byte> input, std::span<std::byte> result) const {
  apply(input, result, nullptr);
}

void python_transform::operator()(std::span<const std::byte> input, std::span<std::byte> result,
                                  random_stream& random) const {
  const std::uint64_t seed = random();
  apply(input, result, &seed);
}

void python_transform::apply(std::span<const std::byte> input, std::span<std::byte> result,
                             const std::uint64_t* seed) const {
  const nb::gil_scoped_acquire held;
  try {
    const nb::object record = input_.form == data::record_form::bytes
                                  ? nb::object(nb::bytes(reinterpret_cast<const char*>(input.data()), input.size()))
                                  : array_of(input_.fields[0], input.data(), nb::rv_policy::copy);
    const nb::object value = seed != nullptr ? (*function_)(record, *seed) : (*function_)(record);
    nb::module_::import_("numpy").attr("copyto")(array_of(result_, result.data(), nb::rv_policy::reference), value,
                                                 nb::arg("casting") = "same_kind");
  } catch (nb::python_error& raised) {
    throw python_failure(std::move(raised));
  }
}

}  // namespace muster::python
