#pragma once

#include <muster/core/copy.hpp>
#include <muster/core/inline.hpp>

#include <cstring>

#include <muster/core/simd.hpp>

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
#include <immintrin.h>
#endif

namespace muster { inline namespace v0 { namespace detail {
inline constexpr std::size_t largest_for_memcpy = 2048;  // memcpy uses vectors up to this size
inline constexpr std::size_t least_for_streaming = std::size_t{8}
                                                   << 20;  // a large part of a core's share of the last-level cache

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)

inline constexpr std::size_t streamed_bytes = 128;

/// Copies with non-temporal stores, with `destination` aligned to a vector; or with normal stores.
template <bool Streaming>
[[gnu::target("avx2")]] void copy_strides(std::byte* destination, const std::byte* source,
                                          std::size_t strides) noexcept {
  for (; strides > 0; --strides, destination += streamed_bytes, source += streamed_bytes) {
    const auto* const in = reinterpret_cast<const __m256i*>(source);
    auto* const out = reinterpret_cast<__m256i*>(destination);
    const __m256i a = _mm256_loadu_si256(in);
    const __m256i b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2);
    const __m256i d = _mm256_loadu_si256(in + 3);
    if constexpr (Streaming) {
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
  if constexpr (Streaming) _mm_sfence();  // before any store that announces the data
}

// Copies the first bytes separately, up to an aligned destination, so that no store is split.
template <bool Streaming>
void copy_by_strides(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept {
  const std::size_t before = (32 - reinterpret_cast<std::size_t>(destination) % 32) % 32;
  std::memcpy(destination, source, before);
  const std::size_t strides = (bytes - before) / streamed_bytes;
  copy_strides<Streaming>(destination + before, source + before, strides);
  const std::size_t done = before + strides * streamed_bytes;
  std::memcpy(destination + done, source + done, bytes - done);
}

#endif

MUSTER_INLINE void copy_bytes(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept {
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
  if (bytes > largest_for_memcpy && has_avx2()) return copy_by_strides<false>(destination, source, bytes);
#endif
  if (bytes > 0) std::memcpy(destination, source, bytes);
}

MUSTER_INLINE void copy_out(std::byte* destination, const std::byte* source, std::size_t bytes,
                            [[maybe_unused]] std::size_t total) noexcept {
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
  if (total >= least_for_streaming && bytes >= streamed_bytes && has_avx2())
    return copy_by_strides<true>(destination, source, bytes);
#endif
  copy_bytes(destination, source, bytes);
}

}}}  // namespace muster::v0::detail
