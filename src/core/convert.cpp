#include <muster/core/convert.hpp>

#include <string>

#include <muster/core/error.hpp>

#include <muster/core/simd.hpp>

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
#include <immintrin.h>
#endif

namespace muster::inline v0 {
namespace {

void require_one_length(std::size_t from, std::size_t to) {
  if (from == to) return;
  throw configuration_error("cannot convert " + std::to_string(from) + " numbers into " + std::to_string(to) +
                            " (one each is needed); pass spans of one length");
}

struct to_half {
  template <class Half>
  static void run(const float* from, Half* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = Half(from[i]);
  }
};
struct from_half {
  template <class Half>
  static void run(const Half* from, float* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = float(from[i]);
  }
};
struct add_half {
  template <class Half>
  static void run(const Half* from, float weight, float* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] += weight * float(from[i]);
  }
};

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)

// Eight at a time; what is left goes by the portable way.
[[gnu::target("avx2,f16c")]] std::size_t eights_to_float16(const float* from, float16* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  return i;
}

[[gnu::target("avx2,f16c")]] std::size_t eights_from_float16(const float16* from, float* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}

[[gnu::target("avx2,f16c")]] std::size_t add_eights_of_float16(const float16* from, float weight, float* to,
                                                               std::size_t count) {
  const __m256 weights = _mm256_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 values = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    _mm256_storeu_ps(to + i, _mm256_add_ps(_mm256_loadu_ps(to + i), _mm256_mul_ps(weights, values)));
  }
  return i;
}

#endif

}  // namespace

void convert(std::span<const float> from, std::span<float16> to) {
  require_one_length(from.size(), to.size());
  std::size_t done = 0;
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
  if (detail::has_avx2()) done = eights_to_float16(from.data(), to.data(), from.size());
#endif
  to_half::run(from.data() + done, to.data() + done, from.size() - done);
}

void convert(std::span<const float16> from, std::span<float> to) {
  require_one_length(from.size(), to.size());
  std::size_t done = 0;
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
  if (detail::has_avx2()) done = eights_from_float16(from.data(), to.data(), from.size());
#endif
  from_half::run(from.data() + done, to.data() + done, from.size() - done);
}

void convert(std::span<const float> from, std::span<bfloat16> to) {
  require_one_length(from.size(), to.size());
  detail::run_vectorised<to_half>(from.data(), to.data(), from.size());
}

void convert(std::span<const bfloat16> from, std::span<float> to) {
  require_one_length(from.size(), to.size());
  detail::run_vectorised<from_half>(from.data(), to.data(), from.size());
}

void convert_add(std::span<const float16> from, float weight, std::span<float> to) {
  require_one_length(from.size(), to.size());
  std::size_t done = 0;
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
  if (detail::has_avx2()) done = add_eights_of_float16(from.data(), weight, to.data(), from.size());
#endif
  add_half::run(from.data() + done, weight, to.data() + done, from.size() - done);
}

void convert_add(std::span<const bfloat16> from, float weight, std::span<float> to) {
  require_one_length(from.size(), to.size());
  detail::run_vectorised<add_half>(from.data(), weight, to.data(), from.size());
}

}  // namespace muster::inline v0
