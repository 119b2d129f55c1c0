#pragma once

#include <muster/core/convert.hpp>
#include <muster/core/inline.hpp>

#include <string>

#include <muster/core/error.hpp>

#include <muster/core/simd.hpp>

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
#include <immintrin.h>
#endif

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

struct to_half {
  template <class Half>
  static void run(const float* source, Half* destination, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) destination[i] = Half(source[i]);
  }
};
struct from_half {
  template <class Half>
  static void run(const Half* source, float* destination, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) destination[i] = float(source[i]);
  }
};
struct add_half {
  template <class Half>
  static void run(const Half* source, float weight, float* destination, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) destination[i] += weight * float(source[i]);
  }
};

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)

// Converts eight values at a time, with instructions for float16. Returns the number of converted values.
[[gnu::target("avx2,f16c")]] inline std::size_t convert_in_eights(to_half, const float* source, float16* destination,
                                                                  std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination + i), halves);
  }
  return i;
}

[[gnu::target("avx2,f16c")]] inline std::size_t convert_in_eights(from_half, const float16* source, float* destination,
                                                                  std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(destination + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
  }
  return i;
}

[[gnu::target("avx2,f16c")]] inline std::size_t convert_in_eights(add_half, const float16* source, float weight,
                                                                  float* destination, std::size_t count) {
  const __m256 weights = _mm256_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 values = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
    _mm256_storeu_ps(destination + i, _mm256_add_ps(_mm256_loadu_ps(destination + i), _mm256_mul_ps(weights, values)));
  }
  return i;
}

std::size_t convert_in_eights(auto...) { return 0; }  // no such instructions for bfloat16

#endif

// Runs the kernel over all elements of both spans. The portable code processes the rest after the groups of eight.
template <class Kernel, class From, class To>
void run_over(std::span<const From> source, std::span<To> destination, auto... weight) {
  if (source.size() != destination.size()) {
    throw configuration_error("cannot convert " + std::to_string(source.size()) + " numbers into " +
                              std::to_string(destination.size()) +
                              " (the lengths differ); pass spans with equal lengths");
  }
  std::size_t done = 0;
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
  if (detail::has_avx2())
    done = convert_in_eights(Kernel(), source.data(), weight..., destination.data(), source.size());
#endif
  detail::run_vectorised<Kernel>(source.data() + done, weight..., destination.data() + done, source.size() - done);
}

}  // namespace detail

MUSTER_INLINE void convert(std::span<const float> source, std::span<float16> destination) {
  detail::run_over<detail::to_half>(source, destination);
}
MUSTER_INLINE void convert(std::span<const float16> source, std::span<float> destination) {
  detail::run_over<detail::from_half>(source, destination);
}
MUSTER_INLINE void convert(std::span<const float> source, std::span<bfloat16> destination) {
  detail::run_over<detail::to_half>(source, destination);
}
MUSTER_INLINE void convert(std::span<const bfloat16> source, std::span<float> destination) {
  detail::run_over<detail::from_half>(source, destination);
}
MUSTER_INLINE void convert_add(std::span<const float16> source, float weight, std::span<float> destination) {
  detail::run_over<detail::add_half>(source, destination, weight);
}
MUSTER_INLINE void convert_add(std::span<const bfloat16> source, float weight, std::span<float> destination) {
  detail::run_over<detail::add_half>(source, destination, weight);
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
