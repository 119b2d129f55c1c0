// A codec that sends the largest values only.
#pragma once

#include <muster/core/codec/codec.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// A codec that sends exactly the k = ceil(share * n) values with the largest magnitude; among equal values the first
/// (Aji and Heafield 2017, https://arxiv.org/abs/1704.05021; Stich et al. 2018, https://arxiv.org/abs/1809.07599). The
/// omitted values are at most a part 1 - k/n of |x|^2. Biased: intended for error feedback. NaN counts as larger than
/// everything.
///
/// The encoded form contains the k indices as 32-bit numbers, ascending, then the k values as floats. O(n): the
/// threshold is found from a sample and from histograms of the magnitudes' bits, without sorting. A span may have at
/// most 2^32 values.
class topk_codec {
 public:
  /// Throws configuration_error unless 0 < share <= 1.
  explicit topk_codec(double share);

  /// Implements the concept `codec`, including its errors, with k = share * count rounded up, at least 1.
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const {
    return elements_of_share(share_, count) * (sizeof(std::uint32_t) + sizeof(float));
  }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;

 private:
  double share_;
};
static_assert(codec<topk_codec>);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
