// One bit a value.
#pragma once

#include <muster/core/codec/codec.hpp>

namespace muster { inline namespace v0 {

/// The signs of the values and one scale, the mean magnitude: |x - decoded|^2 = |x|^2 - (sum of magnitudes)^2 / n, a
/// contraction (Seide et al. 2014, https://doi.org/10.21437/Interspeech.2014-274; Bernstein et al. 2018,
/// https://arxiv.org/abs/1802.04434). Biased: without error feedback it need not converge (Karimireddy et al. 2019,
/// https://arxiv.org/abs/1901.09847). +0 counts as positive, so zeros do not stay zeros.
///
/// Encoded: the scale as float, then a bit a value, lowest first in words of 32, set for negative; zeros behind the
/// last.
struct sign_codec {
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const noexcept {
    return count == 0 ? 0 : sizeof(float) + (count + 31) / 32 * 4;
  }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;
};
static_assert(codec<sign_codec>);

/// Majority vote (Bernstein et al. 2019, https://arxiv.org/abs/1810.05291): each of `voted` becomes the sum of the
/// scales of all voters with the sign that most of them gave it, and 0 when there are as many of either. `encoded`
/// holds the forms that `sign_codec` made of as many values: the first at its begin, each other `stride` bytes behind
/// the one before, the last at its end; so an allgather of several tensors is voted on where it lies. Throws data_error
/// for bytes that are no such forms, and configuration_error for no voters or a stride that is none; writes nothing
/// then.
void majority_vote(std::span<const std::byte> encoded, std::size_t voters, std::size_t stride, std::span<float> voted);

}}  // namespace muster::v0
