// One block of values at a random place that all ranks agree on.
#pragma once

#include <muster/core/codec/codec.hpp>

namespace muster::inline v0 {

/// k = ceil(share * n) values in a row from a random place on, going on at the front when the end is reached ("random
/// block" of Vogels et al. 2019, https://arxiv.org/abs/1905.13727, appendix G): random-k at the speed of a copy. The
/// same draw takes the same block at every rank, so that an allreduce adds them. Each element is chosen with
/// probability k/n, so that what is left out is a part 1 - k/n of |x|^2 in the mean.
///
/// Biased: made for error feedback. Encoded: the k values as floats.
class blockk_codec {
 public:
  /// Throws configuration_error unless 0 < share <= 1.
  explicit blockk_codec(double share);

  /// As the concept `codec` defines them, errors included; for k = share * count rounded up, at least 1.
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const {
    return elements_of_share(share_, count) * sizeof(float);
  }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;

 private:
  double share_;
};
static_assert(codec<blockk_codec>);

}  // namespace muster::inline v0
