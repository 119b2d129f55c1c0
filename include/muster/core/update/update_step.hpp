// The concept of an optimizer's step over spans.
#pragma once

#ifdef __CUDACC__
#include <cmath>
#endif
#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/simd.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

namespace detail {

/// Returns std::sqrt(value), without the 8,600 lines of <cmath> for each file that includes muster.
template <std::floating_point T>
[[nodiscard]] constexpr T square_root(T value) {
#ifdef __CUDACC__
  return std::sqrt(value);
#else
  if constexpr (std::same_as<T, float>)
    return __builtin_sqrtf(value);
  else if constexpr (std::same_as<T, double>)
    return __builtin_sqrt(value);
  else
    return __builtin_sqrtl(value);
#endif
}

/// Returns the object that runs the loop of a step: the step itself, or the precomputed factors that are the same for
/// all elements.
template <class Step>
auto loop_of(const Step& step) {
  if constexpr (requires { step.loop(); })
    return step.loop();
  else
    return step;
}

}  // namespace detail

/// An update of an optimizer, such as sgd_step and adam_step. A step contains the constants of an update of values with
/// type `value`. `states` returns the number of state arrays besides the parameters, at most two. `run(count, ...)`,
/// a member of the step or of the object that its `loop()` returns, updates the first `count` elements of the arrays.
/// Optimizers, parameter servers and devices all call this `run`.
template <class Step>
concept update_step = requires(const Step& step, typename Step::value* values) {
  { step.states() } -> std::same_as<std::size_t>;
  detail::loop_of(step).run(std::size_t{}, values, std::as_const(values), values, values);
};

namespace detail {

inline void require_one_each(std::size_t parameters, std::size_t value_count) {
  if (parameters == value_count) return;
  throw configuration_error("cannot update " + std::to_string(parameters) + " parameters with " +
                            std::to_string(value_count) +
                            " values (one value per parameter is needed); pass spans with equal lengths");
}

/// Throws configuration_error unless the gradients and each used state array have as many elements as the parameters.
template <update_step Step, class Gradients, class States>
void require_one_each(const Step& step, std::size_t parameters, const Gradients& gradients, const States& states) {
  require_one_each(parameters, gradients.size());
  for (std::size_t k = 0; k < step.states(); ++k) require_one_each(parameters, states[k].size());
}

/// The kernel that run_vectorised compiles for the vectors of the machine.
template <class Loop, class T>
struct update_kernel {
  static void run(const Loop* loop, std::size_t count, T* parameters, const T* gradients, T* first, T* second) {
    loop->run(count, parameters, gradients, first, second);
  }
};

}  // namespace detail

/// Performs a step over spans, in one pass over memory, as the step's own description defines. All spans must have the
/// same length, or configuration_error is thrown and nothing is written. The spans must not overlap. `states` begin as
/// zeros. Arrays that the step does not use are ignored, and may be empty.
///
///     muster::update(muster::sgd_step<float>{.learning_rate = 0.1f, .momentum = 0.9f}, weights, gradients,
///     {velocity});
template <update_step Step>
void update(const Step& step, std::span<typename Step::value> parameters,
            std::span<const typename Step::value> gradients,
            const std::array<std::span<typename Step::value>, 2>& states = {}) {
  detail::require_one_each(step, parameters.size(), gradients, states);
  const auto loop = detail::loop_of(step);
  using kernel = detail::update_kernel<std::remove_const_t<decltype(loop)>, typename Step::value>;
  detail::run_vectorised<kernel>(&loop, parameters.size(), parameters.data(), gradients.data(), states[0].data(),
                                 states[1].data());
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
