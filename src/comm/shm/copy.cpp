#include "copy.hpp"

#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace muster::inline v0::detail {
namespace {

constexpr std::size_t left_to_memcpy = 2048;  // it goes by vectors up to here

#ifdef __x86_64__

constexpr std::size_t stride = 128;

__attribute__((target("avx2"))) void copy_strides(std::byte* to, const std::byte* from, std::size_t strides) noexcept {
  for (; strides > 0; --strides, to += stride, from += stride) {
    const auto* const in = reinterpret_cast<const __m256i*>(from);
    auto* const out = reinterpret_cast<__m256i*>(to);
    const __m256i a = _mm256_loadu_si256(in);
    const __m256i b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2);
    const __m256i d = _mm256_loadu_si256(in + 3);
    _mm256_storeu_si256(out, a);
    _mm256_storeu_si256(out + 1, b);
    _mm256_storeu_si256(out + 2, c);
    _mm256_storeu_si256(out + 3, d);
  }
}

#endif

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#ifdef __x86_64__
  static const bool has_vectors = __builtin_cpu_supports("avx2") != 0;
  if (bytes > left_to_memcpy && has_vectors) {
    // The first piece up to a boundary of the target, so that no store is split.
    const std::size_t before = (32 - reinterpret_cast<std::size_t>(to) % 32) % 32;
    std::memcpy(to, from, before);
    const std::size_t strides = (bytes - before) / stride;
    copy_strides(to + before, from + before, strides);
    const std::size_t done = before + strides * stride;
    to += done;
    from += done;
    bytes -= done;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace muster::inline v0::detail
