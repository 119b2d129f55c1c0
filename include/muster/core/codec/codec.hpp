// What all codecs have in common: a span of floats becomes bytes, and bytes are added to a span of floats.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>

namespace muster { inline namespace v0 {

/// A lossy (or plain) compression of float32 values; a small value that holds no data.
///
/// - `encoded_bytes(count)`: the size of the encoded form of `count` values, a function of the count alone and a
///   multiple of 4, so that encoded forms of several tensors follow each other and those of several ranks have one
///   size.
/// - `encode(values, draw, encoded)` fills `encoded`, of exactly that size. What is random about it is a function of
///   `draw`: the same draw makes the same choices, so a step that is run again sends the same bytes.
/// - `decode_add(encoded, draw, weight, sums)` adds weight times what `encoded` stands for to `sums`. The bytes may
///   come from anywhere: those that `encode` cannot have made of so many values are refused with a data_error that
///   names the byte, and `sums` is not touched then. NaN is no such fault: a gradient that diverged stays one.
///
/// Encoded forms begin at a multiple of 4 bytes and are in the byte order of the machine. Spans of wrong sizes that are
/// the caller's own throw configuration_error. All functions are thread safe and give the same bits on every machine
/// of one byte order, whatever vectors it has.
template <class C>
concept codec = std::copyable<C> &&
    requires(const C& coder, std::size_t count, std::span<const float> values, std::uint64_t draw,
             std::span<std::byte> encoded, std::span<const std::byte> received, float weight, std::span<float> sums) {
  { coder.encoded_bytes(count) } -> std::same_as<std::size_t>;
  coder.encode(values, draw, encoded);
  coder.decode_add(received, draw, weight, sums);
};

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

/// How many of `count` elements a share of them is: rounded up, at least 1 unless there are none. Throws
/// configuration_error unless 0 < share <= 1.
[[nodiscard]] std::size_t elements_of_share(double share, std::size_t count);

namespace detail {

/// Throws configuration_error unless `encoded` has `bytes` bytes, at a multiple of 4.
void require_room(std::string_view codec, std::span<const std::byte> encoded, std::size_t bytes);
/// Throws data_error unless `encoded` has `bytes` bytes; configuration_error when it is not at a multiple of 4.
void require_encoded(std::string_view codec, std::span<const std::byte> encoded, std::size_t bytes, std::size_t count);
/// Throws data_error unless the bytes of `encoded` from `begin` on are zeros.
void require_zeros(std::string_view codec, std::span<const std::byte> encoded, std::size_t begin);
/// Throws the data_error of a byte that is not what an encoder writes.
[[noreturn]] void refuse_encoded(std::string_view codec, std::size_t offset, const std::string& why);

}  // namespace detail
}}  // namespace muster::v0
