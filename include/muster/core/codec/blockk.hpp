// One block of values at a random place that all ranks agree on.
#pragma once

#include <muster/core/codec/codec.hpp>

namespace muster::inline v0 {

/// k = ceil(share * n) values in a row from a random place on, going on at the front when the end is reached ("random
/// block" of Vogels et al. 2019, https://arxiv.org/abs/1905.13727, appendix G): random-k at the speed of a copy. The
/// same draw takes the same block at every rank, so that an allreduce adds them. Each element is chosen with
/// probability k/n, so that what is left out is a part 1 - k/n of |x|^2 in the mean.
///
/// As sent it is biased, made for error feedback; `unbiased` sends the values times n/k, for use without. Encoded: the
/// k values as floats.
class blockk_codec {
 public:
  /// Throws configuration_error unless 0 < share <= 1.
  explicit blockk_codec(double share, bool unbiased = false);

  [[nodiscard]] std::string name() const { return detail::spell("blockk", share_); }
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const {
    return elements_of_share(share_, count) * sizeof(float);
  }
  [[nodiscard]] dtype summed_as() const noexcept { return dtype::float32; }
  [[nodiscard]] bool shares_draw() const noexcept { return true; }
  [[nodiscard]] bool is_biased() const noexcept { return !unbiased_; }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;

 private:
  double share_;
  bool unbiased_;
};
static_assert(codec<blockk_codec>);

}  // namespace muster::inline v0
