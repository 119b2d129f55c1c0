#include "array_argument.hpp"

#include <string>

#include <nanobind/stl/string.h>

#include <muster/core/dlpack.hpp>
#include <muster/core/error.hpp>

namespace muster::python {
namespace {

namespace dlpack = nb::dlpack;

dtype dtype_from(const dlpack::dtype& type, bool& is_complex) {
  is_complex = static_cast<dlpack::dtype_code>(type.code) == dlpack::dtype_code::Complex;
  if (!is_complex) return muster::dlpack::dtype_of({type.code, type.bits, type.lanes});
  return type.lanes != 1    ? dtype::none
         : type.bits == 64  ? dtype::float32
         : type.bits == 128 ? dtype::float64
                            : dtype::none;
}

std::string type_of(nb::handle object) { return nb::cast<std::string>(nb::str(object.type().attr("__name__"))); }

template <class Array>
bool is_contiguous(const Array& array) {
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) return false;
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  return true;
}

template <class Array>
muster::detail::typed_elements elements_of(const Array& array, const std::string& argument, bool& is_complex) {
  const int device = array.device_type();
  if (device != nb::device::cpu::value && device != nb::device::cuda_host::value) {
    throw configuration_error(argument + " is on a device of type " + std::to_string(device) +
                              " (collectives use memory of the host); copy it to the host");
  }
  if (array.size() != 0 && !is_contiguous(array)) {
    throw configuration_error(argument +
                              " is not contiguous (collectives move whole blocks of memory); pass a "
                              "contiguous copy");
  }
  const dtype type = dtype_from(array.dtype(), is_complex);
  if (type == dtype::none) {
    throw configuration_error(argument + " has elements of " + std::to_string(array.dtype().bits) +
                              " bits of a type that collectives do not have (they have integers, bool, float16, "
                              "bfloat16, float32, float64 and complex); convert it");
  }
  auto* const data = static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data())));
  return {data, array.size() * (is_complex ? 2 : 1), type};
}

}  // namespace

array_argument::array_argument(nb::handle object, const char* argument, bool writes) {
  const std::string name(argument);
  if (nb::try_cast<nb::ndarray<>>(object, held_) && held_.is_valid()) {
    elements_ = elements_of(held_, name, is_complex_);
    return;
  }
  PyErr_Clear();
  if (nb::try_cast<nb::ndarray<nb::ro>>(object, held_readable_) && held_readable_.is_valid()) {
    if (writes) {
      throw configuration_error(name +
                                " may only be read (its owner exports it so, as JAX and bytes do); pass a "
                                "writable array as the output");
    }
    elements_ = elements_of(held_readable_, name, is_complex_);
    return;
  }
  PyErr_Clear();
  throw configuration_error(name + " is a " + type_of(object) +
                            " (an array with __dlpack__ or the buffer protocol is needed, and a tensor that requires a "
                            "gradient exports none); pass a numpy array, a detached tensor or another array");
}

nb::dlpack::dtype dlpack_type(dtype type) {
  const auto [code, bits, lanes] = muster::dlpack::data_type_of(type);
  return {code, bits, lanes};
}

}  // namespace muster::python
