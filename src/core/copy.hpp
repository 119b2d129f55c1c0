// Copies of large pieces of memory.
#pragma once

#include <cstddef>

namespace muster { inline namespace v0 { namespace detail {

/// What std::memcpy does, at a speed that does not depend on where the two lie in their pages: the C library's uses an
/// instruction (rep movsb) for larger copies that some processors (AMD Zen 3 and 4) do twenty times slower when both
/// lie at the same place, as buffers of an allocator do. Of no bytes both places may be null, as an empty vector's is.
/// https://sourceware.org/bugzilla/show_bug.cgi?id=30994
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

/// The same for a piece of what replaces a buffer of `whole` bytes that was not read before: more than a cache holds
/// goes past it, which spares the memory one of three movements.
void copy_out(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t whole) noexcept;

}}}  // namespace muster::v0::detail
