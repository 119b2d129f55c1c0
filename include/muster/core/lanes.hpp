// Vectors of the machine, for sums in an order that compilers may not change.
#pragma once

#include <cstddef>
#include <cstring>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Vectors of floats or doubles on any machine. Arithmetic is element by element. They are not wider than the vectors
/// of most machines, since compilers split wider vectors inefficiently.
typedef float eight_floats __attribute__((vector_size(32)));
typedef unsigned int eight_words __attribute__((vector_size(32)));
typedef float four_floats __attribute__((vector_size(16)));
typedef double four_doubles __attribute__((vector_size(32)));

/// Returns the sum over [begin, end), in four vectors of partial sums that are added at the end: the same order on
/// every machine. `term(i, sums)` adds the terms of the elements from i, as many as a Vector has, and `single(i)`
/// returns the term of element i.
template <class Vector, class Element, class Term, class Single>
[[nodiscard]] inline Element sum_in_lanes(std::size_t begin, std::size_t end, const Term& term, const Single& single) {
  constexpr std::size_t width = sizeof(Vector) / sizeof(Element);
  Vector first{}, second{}, third{}, fourth{};
  std::size_t i = begin;
  for (; i + 4 * width <= end; i += 4 * width) {
    term(i, first);
    term(i + width, second);
    term(i + 2 * width, third);
    term(i + 3 * width, fourth);
  }
  first += second;
  third += fourth;
  first += third;
  Element sum{};
  for (std::size_t lane = 0; lane < width; ++lane) sum += first[lane];
  for (; i < end; ++i) sum += single(i);
  return sum;
}

/// Loads the elements from `at`; returns them through a reference, because the calling convention for vectors depends
/// on the machine.
template <class Vector>
inline void load(const float* at, Vector& vector) noexcept {
  std::memcpy(&vector, at, sizeof vector);
}

}}}  // namespace muster::v0::detail

#include <muster/core/detail/exact_end.hpp>
