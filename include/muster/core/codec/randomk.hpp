// Values at random places that all ranks agree on.
#pragma once

#include <muster/core/codec/codec.hpp>

namespace muster { inline namespace v0 {

namespace detail {
struct random_places;
struct random_block;
}  // namespace detail

/// k = ceil(share * n) values at places that the same draw chooses at every rank, so that no indices are sent and an
/// allreduce adds the values (the shared seed of Vogels et al. 2019, https://arxiv.org/abs/1905.13727). Each element is
/// chosen with probability k/n, so that what is left out is a part 1 - k/n of |x|^2 in the mean.
///
/// Biased: made for error feedback. Encoded: the k values as floats.
template <class Places>
class drawn_codec {
 public:
  /// Throws configuration_error unless 0 < share <= 1.
  explicit drawn_codec(double share);

  /// As the concept `codec` defines them, errors included; for k = share * count rounded up, at least 1.
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const {
    return elements_of_share(share_, count) * sizeof(float);
  }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;

 private:
  double share_;
};

/// One of each of k stretches of n / k values, turned by a random offset (Stich et al. 2018,
/// https://arxiv.org/abs/1809.07599).
using randomk_codec = drawn_codec<detail::random_places>;
/// k values in a row from a random place on, going on at the front when the end is reached ("random block" of Vogels et
/// al. 2019, appendix G): random-k at the speed of a copy.
using blockk_codec = drawn_codec<detail::random_block>;
static_assert(codec<randomk_codec>);

}}  // namespace muster::v0
