// The concept of a codec: it encodes a span of floats as bytes, and adds decoded bytes to a span of floats.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// A lossy (or plain) compression of float32 values: a small object without data.
///
/// `encoded_bytes(count)` returns the size of the encoded form for `count` values. The size depends on the count alone
/// and is a multiple of 4, so that encoded forms of several tensors can be adjacent and all ranks' forms have the same
/// size.
///
/// `encode(values, draw, encoded)` fills `encoded`, of exactly that size. `draw` is a random seed: the same draw makes
/// the same random choices, so a repeated step sends the same bytes.
///
/// `decode_add(encoded, draw, weight, sums)` adds weight times the decoded values to `sums`. `draw` is the draw of the
/// encoding. The bytes may have any origin. Bytes that `encode` cannot produce for this number of values are rejected
/// with a data_error that names the byte, and `sums` does not change then. NaN is valid: a gradient that diverged
/// remains NaN.
///
/// Encoded forms are aligned to 4 bytes and have the byte order of the machine. Spans of the caller with wrong sizes
/// throw configuration_error. All functions are thread safe and give the same bits on every machine with the same byte
/// order, for any vector width.
template <class C>
concept codec = std::copyable<C> &&
    requires(const C& coder, std::size_t count, std::span<const float> values, std::uint64_t draw,
             std::span<std::byte> encoded, std::span<const std::byte> received, float weight, std::span<float> sums) {
  { coder.encoded_bytes(count) } -> std::same_as<std::size_t>;
  coder.encode(values, draw, encoded);
  coder.decode_add(received, draw, weight, sums);
};

/// Encodes values + residual with error feedback (Seide et al. 2014, https://doi.org/10.21437/Interspeech.2014-274;
/// Karimireddy et al. 2019, https://arxiv.org/abs/1901.09847). `next` receives the difference between the input and its
/// encoded form. Therefore the sum of all decoded values and the last residual equals the sum of all encoded values, up
/// to rounding.
///
/// `next` may be `residual`. With two separate spans a step that does not commit leaves `residual` unchanged. A
/// residual begins as zeros. All three spans must have the same length, or configuration_error is thrown. `values` and
/// `next` must not overlap.
template <codec C>
void encode_with_feedback(const C& coder, std::span<const float> values, std::span<const float> residual,
                          std::uint64_t draw, std::span<std::byte> encoded, std::span<float> next) {
  if (residual.size() != values.size() || next.size() != values.size()) {
    throw configuration_error("cannot feed back the error of " + std::to_string(values.size()) + " values with " +
                              std::to_string(residual.size()) + " and " + std::to_string(next.size()) +
                              " residuals (one residual per value is needed); pass spans with equal lengths");
  }
  for (std::size_t i = 0; i < values.size(); ++i) next[i] = values[i] + residual[i];
  coder.encode(next, draw, encoded);
  coder.decode_add(encoded, draw, -1.0f, next);
}

/// Returns the number of elements in a share of `count` elements: rounded up, and at least 1 unless `count` is 0.
/// Throws configuration_error unless 0 < share <= 1.
[[nodiscard]] std::size_t elements_of_share(double share, std::size_t count);

namespace detail {

/// Throws configuration_error unless `encoded` has `bytes` bytes and is aligned to 4 bytes.
void require_room(std::string_view codec, std::span<const std::byte> encoded, std::size_t bytes);
/// Throws data_error unless `encoded` has `bytes` bytes. Throws configuration_error when `encoded` is not aligned to 4
/// bytes.
void require_encoded(std::string_view codec, std::span<const std::byte> encoded, std::size_t bytes, std::size_t count);
/// Throws data_error unless all bytes of `encoded` from `begin` are zeros.
void require_zeros(std::string_view codec, std::span<const std::byte> encoded, std::size_t begin);
/// Throws the data_error for a byte that no encoder writes.
[[noreturn]] void refuse_encoded(std::string_view codec, std::size_t offset, const std::string& reason);

}  // namespace detail
}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
