// The compression that a command line selects, and a type-erased codec.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <muster/core/codec/codec.hpp>
#include <muster/core/codec/plain.hpp>
#include <muster/core/codec/qsgd.hpp>
#include <muster/core/codec/sign.hpp>
#include <muster/core/codec/topk.hpp>
#include <muster/core/spec.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// The methods of `--compress`, each with its own header in core/codec, and methods that the program registered.
enum class compression_method : std::uint8_t { none, float16, bfloat16, qsgd8, sign, topk, powersgd, registered };

/// A method with its parameter.
struct compression {
  compression_method method = compression_method::none;
  double share = 1.0;    ///< for topk: share of the elements that are sent, in (0, 1]
  std::size_t rank = 0;  ///< for powersgd, at least 1
  std::string text{};    ///< for a registered method: its whole text, such as "mine:4"

  friend bool operator==(const compression&, const compression&) = default;
};

/// Parses a value of `--compress`:
///
///     none | float16 | bfloat16 | qsgd8 | sign | topk:SHARE | powersgd:RANK
///
/// or a registered method. Throws configuration_error, which names the mistake and, for an unknown method, the
/// known methods.
[[nodiscard]] compression parse_compression(std::string_view text);

/// Returns the method as a text that `parse_compression` reads.
[[nodiscard]] std::string to_string(const compression& method);

/// The properties of a codec that its senders depend on.
struct codec_traits {
  /// Element type of the encoded form if the sum of encoded arrays encodes the sum of their values, so that an
  /// allreduce may add them. dtype::none if each encoded form must be decoded separately.
  dtype summed_as = dtype::none;
  /// True if ranks must use the same draw, so that their arrays contain the same elements. Otherwise each rank should
  /// use its own draw, so that their errors are independent.
  bool shares_draw = false;
  /// True if the mean of the decoded values over all draws differs from the encoded values. Such a method needs error
  /// feedback (`encode_with_feedback`).
  bool is_biased = true;
};

/// A type-erased codec of spans, selected at run time. It holds copies of the codec, and calls the codec indirectly.
class any_codec {
 public:
  /// Creates the plain codec.
  any_codec() : any_codec(compression()) {}
  /// Creates the codec of a method. Throws configuration_error for powersgd, which is not a codec of spans: it
  /// processes matrices with two allreduces, and the message of a single rank cannot be decoded.
  explicit any_codec(const compression& method);
  /// Wraps a codec of the program, for `register_codec`. The codec has no name yet.
  template <codec C>
  any_codec(const C& coder, const codec_traits& traits)
      : traits_(traits),
        encoded_bytes_([coder](std::size_t count) { return coder.encoded_bytes(count); }),
        encode_([coder](auto values, auto draw, auto encoded) { coder.encode(values, draw, encoded); }),
        decode_add_([coder](auto encoded, auto draw, float weight, auto sums) {
          coder.decode_add(encoded, draw, weight, sums);
        }) {}

  /// Returns the name in `--compress`, such as "topk:0.1".
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Returns the properties in `codec_traits`.
  [[nodiscard]] dtype summed_as() const noexcept { return traits_.summed_as; }
  [[nodiscard]] bool shares_draw() const noexcept { return traits_.shares_draw; }
  [[nodiscard]] bool is_biased() const noexcept { return traits_.is_biased; }

  /// Implements the concept `codec`, including its errors.
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const { return encoded_bytes_(count); }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const {
    encode_(values, draw, encoded);
  }
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const {
    decode_add_(encoded, draw, weight, sums);
  }

 private:
  std::string name_;
  codec_traits traits_;
  std::function<std::size_t(std::size_t)> encoded_bytes_;
  std::function<void(std::span<const float>, std::uint64_t, std::span<std::byte>)> encode_;
  std::function<void(std::span<const std::byte>, std::uint64_t, float, std::span<float>)> decode_add_;
};
static_assert(codec<any_codec>);

/// A function that creates the codec for a text. `spec.value("bits")` returns the value after the colon. Values and
/// keys that the function does not read are rejected.
using codec_factory = any_codec (*)(spec_reader& spec);

/// Registers `--compress NAME` as a method of the program, for gradient_sync and parameter servers. Call it at every
/// rank, before settings are read. `make` reads the method's values and keys. Thread safe. Throws configuration_error
/// for a name that exists, or is invalid: a name consists of lower-case letters, digits and underscores.
void register_codec(std::string_view name, codec_factory make);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
