#pragma once

#include <muster/core/buffer.hpp>

#include <sys/mman.h>

#include <cstdint>

#include <muster/core/inline.hpp>
#include <muster/core/round_up.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

// Maps more than is needed and unmaps the rest, so that the memory begins at a large page.
MUSTER_INLINE void* map_zeros(std::size_t bytes) {
  if (bytes > std::size_t(-1) - 2 * huge_page) throw std::bad_alloc();
  const std::size_t rounded = round_up(bytes, huge_page);
  void* const mapped = ::mmap(nullptr, rounded + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  const auto first = round_up(begin, huge_page);
  if (first > begin) ::munmap(mapped, first - begin);
  if (const auto rest = begin + huge_page - first; rest > 0) ::munmap(reinterpret_cast<void*>(first + rounded), rest);
  void* const memory = reinterpret_cast<void*>(first);
#ifdef MADV_HUGEPAGE
  (void)::madvise(memory, rounded, MADV_HUGEPAGE);  // a hint: no effect where the system does not grant it
#endif
  return memory;
}

MUSTER_INLINE void unmap_zeros(void* memory, std::size_t bytes) noexcept {
  ::munmap(memory, round_up(bytes, huge_page));
}

}}}  // namespace muster::v0::detail
