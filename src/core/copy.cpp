#include "copy.hpp"

#include <cstring>

#include <muster/core/simd.hpp>

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
#include <immintrin.h>
#endif

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::size_t left_to_memcpy = 2048;                  // it goes by vectors up to here
constexpr std::size_t past_the_cache = std::size_t{8} << 20;  // a good part of what cores share of the last cache

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)

constexpr std::size_t stride = 128;

/// Past the cache, with `to` at a boundary of a vector; or into it.
template <bool PastCache>
[[gnu::target("avx2")]] void copy_strides(std::byte* to, const std::byte* from, std::size_t strides) noexcept {
  for (; strides > 0; --strides, to += stride, from += stride) {
    const auto* const in = reinterpret_cast<const __m256i*>(from);
    auto* const out = reinterpret_cast<__m256i*>(to);
    const __m256i a = _mm256_loadu_si256(in);
    const __m256i b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2);
    const __m256i d = _mm256_loadu_si256(in + 3);
    if constexpr (PastCache) {
      _mm256_stream_si256(out, a);
      _mm256_stream_si256(out + 1, b);
      _mm256_stream_si256(out + 2, c);
      _mm256_stream_si256(out + 3, d);
    } else {
      _mm256_storeu_si256(out, a);
      _mm256_storeu_si256(out + 1, b);
      _mm256_storeu_si256(out + 2, c);
      _mm256_storeu_si256(out + 3, d);
    }
  }
  if constexpr (PastCache) _mm_sfence();  // before anything that says it is there
}

// The first piece up to a boundary of the target, so that no store is split.
template <bool PastCache>
void copy_by_strides(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const std::size_t before = (32 - reinterpret_cast<std::size_t>(to) % 32) % 32;
  std::memcpy(to, from, before);
  const std::size_t strides = (bytes - before) / stride;
  copy_strides<PastCache>(to + before, from + before, strides);
  const std::size_t done = before + strides * stride;
  std::memcpy(to + done, from + done, bytes - done);
}

#endif

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
  if (bytes > left_to_memcpy && has_avx2()) return copy_by_strides<false>(to, from, bytes);
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void copy_out(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t whole) noexcept {
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
  if (whole >= past_the_cache && bytes >= stride && has_avx2()) return copy_by_strides<true>(to, from, bytes);
#endif
  copy_bytes(to, from, bytes);
}

}}}  // namespace muster::v0::detail
