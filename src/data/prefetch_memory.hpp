// Asking for memory before it is read; private to muster's own sources.
#pragma once

#include <cstddef>

namespace muster::inline v0::detail {

/// Asks the processor for `size` bytes that are read soon. A record of a shuffled order lies anywhere, and the
/// processor's own prefetcher, which begins anew at every page, would be late for most of it.
inline void prefetch_memory(const std::byte* data, std::size_t size) noexcept {
  constexpr std::size_t line = 64;
  constexpr std::size_t most = 8192;  // of more, the prefetcher finds the rest
  for (std::size_t at = 0; at < size && at < most; at += line) __builtin_prefetch(data + at);
}

}  // namespace muster::inline v0::detail
