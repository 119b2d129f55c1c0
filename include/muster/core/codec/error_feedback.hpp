// What a lossy code leaves out is not lost: it is added to what is encoded next.
#pragma once

#include <string>

#include <muster/core/codec/codec.hpp>
#include <muster/core/error.hpp>

namespace muster::inline v0 {

/// Error feedback (Seide et al. 2014, https://doi.org/10.21437/Interspeech.2014-274; Karimireddy et al. 2019,
/// https://arxiv.org/abs/1901.09847): encodes values + residual, and `next` becomes what the encoded form lacks of
/// that. So all that was decoded and the last residual sum to all that was encoded, up to rounding.
///
/// `next` may be `residual`; with two of them a step that did not happen leaves `residual` as it was. A residual begins
/// as zeros. All three spans have one length, or configuration_error is thrown; `values` and `next` do not overlap.
template <codec C>
void encode_with_feedback(const C& coder, std::span<const float> values, std::span<const float> residual,
                          std::uint64_t draw, std::span<std::byte> encoded, std::span<float> next) {
  if (residual.size() != values.size() || next.size() != values.size()) {
    throw configuration_error("cannot feed back the error of " + std::to_string(values.size()) + " values with " +
                              std::to_string(residual.size()) + " and " + std::to_string(next.size()) +
                              " residuals (one of each is needed); pass spans of one length");
  }
  for (std::size_t i = 0; i < values.size(); ++i) next[i] = values[i] + residual[i];
  coder.encode(next, draw, encoded);
  coder.decode_add(encoded, draw, -1.0f, next);
}

}  // namespace muster::inline v0
