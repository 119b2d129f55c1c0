#pragma once

#include <muster/core/codec/codec.hpp>

#include <algorithm>
#include <cmath>

#include <muster/core/inline.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

MUSTER_INLINE std::size_t elements_of_share(double share, std::size_t count) {
  if (!(share > 0.0 && share <= 1.0)) {
    throw configuration_error("a share of elements cannot be " + std::to_string(share) +
                              " (it must be above 0 and at most 1); give one such as 0.1");
  }
  if (count == 0) return 0;
  const double elements = std::ceil(share * static_cast<double>(count));
  return std::clamp<std::size_t>(static_cast<std::size_t>(elements), 1, count);
}

namespace detail {

inline void require_alignment(std::string_view codec, std::span<const std::byte> encoded) {
  if (reinterpret_cast<std::uintptr_t>(encoded.data()) % 4 == 0) return;
  throw configuration_error("the encoded form of " + std::string(codec) +
                            " is not aligned (it contains words of 4 bytes); align its buffer");
}
MUSTER_INLINE void require_room(std::string_view codec, std::span<const std::byte> encoded, std::size_t bytes) {
  if (encoded.size() != bytes) {
    throw configuration_error("cannot encode with " + std::string(codec) + " into " + std::to_string(encoded.size()) +
                              " bytes (it needs " + std::to_string(bytes) + "); call encoded_bytes() first");
  }
  require_alignment(codec, encoded);
}

MUSTER_INLINE void require_encoded(std::string_view codec, std::span<const std::byte> encoded, std::size_t bytes,
                                   std::size_t count) {
  if (encoded.size() != bytes) {
    refuse_encoded(codec, std::min(encoded.size(), bytes),
                   "there are " + std::to_string(encoded.size()) + " bytes where " + std::to_string(count) +
                       " values take " + std::to_string(bytes));
  }
  require_alignment(codec, encoded);
}

MUSTER_INLINE void require_zeros(std::string_view codec, std::span<const std::byte> encoded, std::size_t begin) {
  for (std::size_t i = begin; i < encoded.size(); ++i) {
    if (encoded[i] != std::byte{0}) refuse_encoded(codec, i, "the padding is not zero");
  }
}

MUSTER_INLINE void refuse_encoded(std::string_view codec, std::size_t offset, const std::string& reason) {
  throw data_error(data_location{.file = "compressed by " + std::string(codec), .offset = offset},
                   "cannot be decoded (" + reason + "); use the same codec and shape on both sides");
}

}  // namespace detail
}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
