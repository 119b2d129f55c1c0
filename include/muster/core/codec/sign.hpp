// A codec with one bit per value.
#pragma once

#include <muster/core/codec/codec.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// A codec that sends the signs of the values and one scale, the mean magnitude: |x - decoded|^2 = |x|^2 - (sum of
/// magnitudes)^2 / n, a contraction (Seide et al. 2014, https://doi.org/10.21437/Interspeech.2014-274; Bernstein et al.
/// 2018, https://arxiv.org/abs/1802.04434). Biased: without error feedback it may not converge (Karimireddy et al.
/// 2019, https://arxiv.org/abs/1901.09847). +0 counts as positive, so zeros do not stay zeros.
///
/// The encoded form contains the scale as float, then a bit per value, lowest first in words of 32, set for negative
/// values; zero bits after the last.
struct sign_codec {
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const noexcept {
    return count == 0 ? 0 : sizeof(float) + (count + 31) / 32 * 4;
  }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;
};
static_assert(codec<sign_codec>);

/// Computes a majority vote (Bernstein et al. 2019, https://arxiv.org/abs/1810.05291). Each element of `voted` becomes
/// the sum of the voters' scales with the sign of the majority, and 0 in a tie. `encoded` holds the forms that
/// `sign_codec` made from the same number of values. The first form starts at the begin, each next form starts `stride`
/// bytes after the previous one, and the last form ends at the end. The result of an allgather of several tensors can
/// therefore be used without copies. Throws data_error for bytes that are not such forms, and configuration_error for
/// zero voters or an invalid stride. Writes nothing when it throws.
void majority_vote(std::span<const std::byte> encoded, std::size_t voters, std::size_t stride, std::span<float> voted);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
