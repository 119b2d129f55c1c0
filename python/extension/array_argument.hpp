// Arrays that Python passes: numpy, PyTorch, JAX and everything else with __dlpack__ or the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "typed_call.hpp"

namespace muster::python {

namespace nb = nanobind;

/// A contiguous array on the host, and the reference that keeps its memory.
class array_argument {
 public:
  /// An array without elements, for a rank that passes none.
  array_argument() = default;
  /// Refers to the memory of `object`. Throws configuration_error that names the argument for an object that is no
  /// array, an array on a device, an array that is not contiguous, an element type that collectives do not have, and,
  /// where `writes`, an array that may only be read.
  array_argument(nb::handle object, const char* argument, bool writes);

  [[nodiscard]] const muster::detail::typed_elements& elements() const noexcept { return elements_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return elements_.count * size_of(elements_.type); }
  /// Returns true if the elements are the halves of complex numbers.
  [[nodiscard]] bool is_complex() const noexcept { return is_complex_; }

 private:
  nb::ndarray<> held_;
  nb::ndarray<nb::ro> held_readable_;
  muster::detail::typed_elements elements_;
  bool is_complex_ = false;
};

/// Returns the code of a type for DLPack.
[[nodiscard]] nb::dlpack::dtype dlpack_type(dtype type);

}  // namespace muster::python
