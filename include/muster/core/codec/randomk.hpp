// Codecs that send values at random positions, the same at all ranks.
#pragma once

#include <muster/core/codec/codec.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

namespace detail {
struct random_places;
struct random_block;
}  // namespace detail

/// A codec that sends k = ceil(share * n) values at positions that the same draw selects at every rank. Therefore no
/// indices are sent, and an allreduce adds the values (the shared seed of Vogels et al. 2019,
/// https://arxiv.org/abs/1905.13727). Each element is selected with probability k/n, so the omitted values are in
/// the mean a part 1 - k/n of |x|^2.
///
/// Biased: intended for error feedback. The encoded form contains the k values as floats.
template <class Places>
class drawn_codec {
 public:
  /// Throws configuration_error unless 0 < share <= 1.
  explicit drawn_codec(double share);

  /// Implements the concept `codec`, including its errors, with k = share * count rounded up, at least 1.
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const {
    return elements_of_share(share_, count) * sizeof(float);
  }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;

 private:
  double share_;
};

/// A codec that selects one value in each of k intervals of n / k values, rotated by a random offset (Stich et al.
/// 2018, https://arxiv.org/abs/1809.07599).
using randomk_codec = drawn_codec<detail::random_places>;
/// A codec that selects k consecutive values from a random position, continuing at the front after the end ("random
/// block" in Vogels et al. 2019, appendix G): random-k at the speed of a copy.
using blockk_codec = drawn_codec<detail::random_block>;
static_assert(codec<randomk_codec>);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
