// Which compression, as command lines say it; and any codec as one value.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <muster/core/codec/codec.hpp>
#include <muster/core/codec/plain.hpp>
#include <muster/core/codec/qsgd.hpp>
#include <muster/core/codec/randomk.hpp>
#include <muster/core/codec/sign.hpp>
#include <muster/core/codec/topk.hpp>
#include <muster/core/spec.hpp>

namespace muster { inline namespace v0 {

/// The methods of `--compress`, each with a header of its own in core/codec, and those that the program registered.
enum class compression_method : std::uint8_t {
  none,
  float16,
  bfloat16,
  qsgd8,
  sign,
  topk,
  randomk,
  blockk,
  powersgd,
  registered
};

/// A method with its number.
struct compression {
  compression_method method = compression_method::none;
  double share = 1.0;    ///< of topk, randomk and blockk: of the elements that are sent, in (0, 1]
  std::size_t rank = 0;  ///< of powersgd, at least 1
  std::string text{};    ///< of a registered one: all of it, "mine:4"

  friend bool operator==(const compression&, const compression&) = default;
};

/// Reads what `--compress` takes:
///
///     none | float16 | bfloat16 | qsgd8 | sign | topk:SHARE | randomk:SHARE | blockk:SHARE | powersgd:RANK
///
/// or what was registered. Throws configuration_error saying what is wrong and what is known.
[[nodiscard]] compression parse_compression(std::string_view text);

/// As `parse_compression` reads it.
[[nodiscard]] std::string to_string(const compression& which);

/// What those that send encoded values know of a codec.
struct codec_traits {
  /// When the encoded form is an array of that type and the sum of the arrays of several ranks stands for the sum of
  /// their values, an allreduce may add them; dtype::none when the encoded forms have to be seen one by one.
  dtype summed_as = dtype::none;
  /// Ranks must use one draw for their arrays to be of the same elements; otherwise each rank should use its own, so
  /// that their errors are independent.
  bool shares_draw = false;
  /// The mean over all draws of what is decoded is not what was encoded, so the method calls for error feedback
  /// (`encode_with_feedback`).
  bool is_biased = true;
};

/// Any codec of spans, chosen at run time, as one value: holds copies of the codec, which it calls indirectly.
class any_codec {
 public:
  /// The plain one.
  any_codec() : any_codec(compression()) {}
  /// That of a method. Throws configuration_error for powersgd, which is no codec of spans: it works on matrices, by
  /// two allreduces, and no rank's message stands alone.
  explicit any_codec(const compression& which);
  /// A codec of the program's, for `register_codec`; it has no name yet.
  template <codec C>
  any_codec(const C& coder, const codec_traits& traits)
      : traits_(traits),
        encoded_bytes_([coder](std::size_t count) { return coder.encoded_bytes(count); }),
        encode_([coder](auto values, auto draw, auto encoded) { coder.encode(values, draw, encoded); }),
        decode_add_([coder](auto encoded, auto draw, float weight, auto sums) {
          coder.decode_add(encoded, draw, weight, sums);
        }) {}

  /// As `--compress` spells it, "topk:0.1".
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// As `codec_traits` has them.
  [[nodiscard]] dtype summed_as() const noexcept { return traits_.summed_as; }
  [[nodiscard]] bool shares_draw() const noexcept { return traits_.shares_draw; }
  [[nodiscard]] bool is_biased() const noexcept { return traits_.is_biased; }

  /// As the concept `codec` defines them, errors included.
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

/// Makes the codec that a text names: `from.value("bits")` is what is behind the colon. What it leaves is refused.
using codec_factory = any_codec (*)(spec_reader& from);

/// Makes `--compress NAME`, with the values and keys that `make` takes, a method of the program's: for gradient_sync
/// and parameter servers, at every rank, before settings are read. Thread safe. Throws configuration_error for a name
/// that is taken, or is none: lower-case letters, digits and underscores.
void register_codec(std::string_view name, codec_factory make);

}}  // namespace muster::v0
