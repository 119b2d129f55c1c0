#include <muster/core/device/kernels.hpp>

#include <string>
#include <type_traits>

#include <muster/core/device/memory.hpp>
#include <muster/core/error.hpp>
#include <muster/core/update.hpp>

#include "launch.hpp"

namespace muster::inline v0 {
namespace {

// An element at a time through the host's own loop: one formula, in one place.
template <class Loop>
struct one_step {
  Loop loop;
  float* parameters;
  const float* gradients;
  float* first;  // states, or null
  float* second;
  constexpr void operator()(std::size_t i) const {
    loop.run(1, parameters + i, gradients + i, first == nullptr ? nullptr : first + i,
             second == nullptr ? nullptr : second + i);
  }
};

struct scaled {
  float* values;
  float by;
  constexpr void operator()(std::size_t i) const { values[i] *= by; }
};

struct filled {
  float* values;
  float to;
  constexpr void operator()(std::size_t i) const { values[i] = to; }
};

// Sums go in levels: each element of a level is the sum of so many of the one before.
constexpr std::size_t run = 256;
constexpr std::size_t runs_of(std::size_t size) { return (size + run - 1) / run; }

/// Of floats their squares.
template <class T>
struct sum_of_run {
  const T* values;
  std::size_t size;
  double* sums;
  constexpr void operator()(std::size_t k) const {
    const std::size_t end = size < (k + 1) * run ? size : (k + 1) * run;
    double sum = 0;
    for (std::size_t i = k * run; i < end; ++i) {
      const auto value = static_cast<double>(values[i]);
      sum += std::is_same_v<T, float> ? value * value : value;
    }
    sums[k] = sum;
  }
};

template <class From, class To>
struct converted {
  const From* from;
  To* to;
  constexpr void operator()(std::size_t i) const { to[i] = To(static_cast<float>(from[i])); }
};

template <class From, class To>
void convert_all(device_span<const From> from, device_span<To> to, device_stream_ref stream) {
  detail::require_same_size(from.size(), to.size());
  detail::for_each(stream, from.size(), converted<From, To>{from.data(), to.data()});
}

}  // namespace

template <update_step Step>
void update(const Step& step, device_span<float> parameters, device_span<const float> gradients,
            const std::array<device_span<float>, 2>& states, device_stream_ref stream) {
  detail::require_one_each(step, parameters.size(), gradients, states);
  const auto loop = detail::loop_of(step);
  detail::for_each(stream, parameters.size(),
                   one_step<std::remove_const_t<decltype(loop)>>{loop, parameters.data(), gradients.data(),
                                                                 states[0].data(), states[1].data()});
}
template void update(const sgd_step<float>&, device_span<float>, device_span<const float>,
                     const std::array<device_span<float>, 2>&, device_stream_ref);
template void update(const adam_step<float>&, device_span<float>, device_span<const float>,
                     const std::array<device_span<float>, 2>&, device_stream_ref);

void convert(device_span<const float> from, device_span<float16> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}
void convert(device_span<const float16> from, device_span<float> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}
void convert(device_span<const float> from, device_span<bfloat16> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}
void convert(device_span<const bfloat16> from, device_span<float> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}

void scale(device_span<float> values, float by, device_stream_ref stream) {
  detail::for_each(stream, values.size(), scaled{values.data(), by});
}

void fill(device_span<float> values, float to, device_stream_ref stream) {
  detail::for_each(stream, values.size(), filled{values.data(), to});
}

// The first element is the result's; behind it come the levels.
std::size_t sum_scratch(std::size_t size) noexcept {
  std::size_t all = 2;
  for (std::size_t level = runs_of(size); level > 1; level = runs_of(level)) all += level;
  return all;
}

void sum_of_squares(device_span<const float> values, device_span<double> sums, device_stream_ref stream) {
  if (sums.size() < sum_scratch(values.size())) {
    throw configuration_error("a sum cannot work in " + std::to_string(sums.size()) + " doubles (it needs " +
                              std::to_string(sum_scratch(values.size())) + "); ask sum_scratch");
  }
  if (values.empty()) {
    clear(sums.first(1), stream);
    return;
  }
  double* level = sums.data() + 1;
  std::size_t size = runs_of(values.size());
  detail::for_each(stream, size, sum_of_run<float>{values.data(), values.size(), level});
  while (size > 1) {
    double* const next = level + size;
    detail::for_each(stream, runs_of(size), sum_of_run<double>{level, size, next});
    level = next;
    size = runs_of(size);
  }
  copy(device_span<const double>(level, 1), sums.first(1), stream);
}

}  // namespace muster::inline v0
