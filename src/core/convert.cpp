#include <muster/core/convert.hpp>

#include <string>

#include <muster/core/error.hpp>

#include <muster/core/simd.hpp>

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
#include <immintrin.h>
#endif

namespace muster { inline namespace v0 {
namespace {

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

// Eight at a time, by instructions that are for float16 alone; how many these are.
[[gnu::target("avx2,f16c")]] std::size_t eights(to_half, const float* from, float16* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  return i;
}

[[gnu::target("avx2,f16c")]] std::size_t eights(from_half, const float16* from, float* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}

[[gnu::target("avx2,f16c")]] std::size_t eights(add_half, const float16* from, float weight, float* to,
                                                std::size_t count) {
  const __m256 weights = _mm256_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 values = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    _mm256_storeu_ps(to + i, _mm256_add_ps(_mm256_loadu_ps(to + i), _mm256_mul_ps(weights, values)));
  }
  return i;
}

std::size_t eights(auto...) { return 0; }  // for bfloat16 there are none

#endif

// The kernel over all numbers of both spans; what is left of eights goes by the portable way.
template <class Kernel, class From, class To>
void run_over(std::span<const From> from, std::span<To> to, auto... weight) {
  if (from.size() != to.size()) {
    throw configuration_error("cannot convert " + std::to_string(from.size()) + " numbers into " +
                              std::to_string(to.size()) + " (one each is needed); pass spans of one length");
  }
  std::size_t done = 0;
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
  if (detail::has_avx2()) done = eights(Kernel(), from.data(), weight..., to.data(), from.size());
#endif
  detail::run_vectorised<Kernel>(from.data() + done, weight..., to.data() + done, from.size() - done);
}

}  // namespace

void convert(std::span<const float> from, std::span<float16> to) { run_over<to_half>(from, to); }
void convert(std::span<const float16> from, std::span<float> to) { run_over<from_half>(from, to); }
void convert(std::span<const float> from, std::span<bfloat16> to) { run_over<to_half>(from, to); }
void convert(std::span<const bfloat16> from, std::span<float> to) { run_over<from_half>(from, to); }
void convert_add(std::span<const float16> from, float weight, std::span<float> to) {
  run_over<add_half>(from, to, weight);
}
void convert_add(std::span<const bfloat16> from, float weight, std::span<float> to) {
  run_over<add_half>(from, to, weight);
}

}}  // namespace muster::v0
