// Copies of large parts of memory.
#pragma once

#include <cstddef>

namespace muster { inline namespace v0 { namespace detail {

/// Copies like std::memcpy, at a speed that does not depend on the places of the two buffers within their pages. For
/// larger copies the C library uses an instruction (rep movsb) that on some processors (AMD Zen 3 and 4) is twenty
/// times slower when both buffers have the same offset, as buffers of an allocator do. For 0 bytes both pointers may be
/// null, as for an empty vector. https://sourceware.org/bugzilla/show_bug.cgi?id=30994
void copy_bytes(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept;

/// Copies a part of `total` bytes into a buffer that was not read before. A total that exceeds the cache is written
/// with non-temporal stores, which saves a third of the memory transfers.
void copy_out(std::byte* destination, const std::byte* source, std::size_t bytes, std::size_t total) noexcept;

}}}  // namespace muster::v0::detail
