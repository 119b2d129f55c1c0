// Which compression, as command lines say it; and any codec as one value.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include <muster/core/codec/blockk.hpp>
#include <muster/core/codec/codec.hpp>
#include <muster/core/codec/half.hpp>
#include <muster/core/codec/plain.hpp>
#include <muster/core/codec/qsgd.hpp>
#include <muster/core/codec/randomk.hpp>
#include <muster/core/codec/sign.hpp>
#include <muster/core/codec/topk.hpp>

namespace muster::inline v0 {

/// The methods of `--compress`, each with a header of its own in core/codec.
enum class compression_method : std::uint8_t { none, float16, bfloat16, qsgd8, sign, topk, randomk, blockk, powersgd };

/// A method with its number.
struct compression {
  compression_method method = compression_method::none;
  double share = 1.0;    ///< of topk, randomk and blockk: of the elements that are sent, in (0, 1]
  std::size_t rank = 0;  ///< of powersgd, at least 1

  friend bool operator==(const compression&, const compression&) = default;
};

/// Reads what `--compress` takes:
///
///     none | float16 | bfloat16 | qsgd8 | sign | topk:SHARE | randomk:SHARE | blockk:SHARE | powersgd:RANK
///
/// Throws configuration_error saying what is wrong and what is known.
[[nodiscard]] compression parse_compression(std::string_view text);

/// As `parse_compression` reads it.
[[nodiscard]] std::string to_string(const compression& which);

/// Any codec of spans as one value; what its functions do is what those of the one it holds do.
class any_codec {
 public:
  /// The plain one.
  any_codec() = default;
  /// That of a method. Throws configuration_error for powersgd, which is no codec of spans: it works on matrices, by
  /// two allreduces, and no rank's message stands alone.
  explicit any_codec(const compression& which);

  /// As `--compress` spells it, "topk:0.1".
  [[nodiscard]] std::string name() const { return to_string(which_); }
  /// When the encoded form is an array of that type and the sum of the arrays of several ranks stands for the sum of
  /// their values, an allreduce may add them; dtype::none when the encoded forms have to be seen one by one.
  [[nodiscard]] dtype summed_as() const noexcept;
  /// Ranks must use one draw for their arrays to be of the same elements; otherwise each rank should use its own, so
  /// that their errors are independent.
  [[nodiscard]] bool shares_draw() const noexcept;
  /// The mean over all draws of what is decoded is not what was encoded, so the method calls for error feedback
  /// (core/codec/error_feedback.hpp).
  [[nodiscard]] bool is_biased() const noexcept;

  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const;
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;

 private:
  compression which_;
  std::variant<plain_codec, float16_codec, bfloat16_codec, qsgd8_codec, sign_codec, topk_codec, randomk_codec,
               blockk_codec>
      held_;
};
static_assert(codec<any_codec>);

}  // namespace muster::inline v0
