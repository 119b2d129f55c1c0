// A small random generator with the same numbers on every platform, unlike the distributions of <random>.
#pragma once

#include <cstdint>

#include <muster/core/hash.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// A counter-based generator: the n-th number is a function of (seed, stream, n) alone. Streams are parts of one
/// sequence of 2^64 numbers, so two streams of n numbers overlap with a probability of about n / 2^63. Models
/// std::uniform_random_bit_generator.
class random_stream {
 public:
  using result_type = std::uint64_t;  ///< required by std::uniform_random_bit_generator, like min() and max()

  /// Starts at number 0 of a stream. Each pair of seed and stream selects its own part of the sequence.
  explicit constexpr random_stream(std::uint64_t seed, std::uint64_t stream_number = 0) noexcept
      : key_(mix(seed + 0x9e3779b97f4a7c15ULL) ^ mix(mix(stream_number + 0xd1b54a32d192ed03ULL))) {}

  static constexpr result_type min() noexcept { return 0; }                ///< the least number
  static constexpr result_type max() noexcept { return ~result_type{0}; }  ///< the largest number
  /// Returns the next number; all 64-bit values are equally likely.
  constexpr result_type operator()() noexcept { return mix(key_ + 0x9e3779b97f4a7c15ULL * ++counter_); }

  /// Returns a number in [0, bound), every number equally likely (Lemire 2019, https://doi.org/10.1145/3230636).
  /// `bound` > 0.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    wide scaled = wide{(*this)()} * bound;
    if (static_cast<std::uint64_t>(scaled) < bound) {
      const std::uint64_t threshold = (0 - bound) % bound;
      while (static_cast<std::uint64_t>(scaled) < threshold) scaled = wide{(*this)()} * bound;
    }
    return static_cast<std::uint64_t>(scaled >> 64);
  }

  /// Returns a number in [0, 1), a multiple of 2^-53.
  constexpr double uniform() noexcept { return static_cast<double>((*this)() >> 11) * 0x1p-53; }

  /// Returns a number of the standard normal distribution (Box-Muller; the second number of the pair is dropped, so
  /// that the position in the stream is the complete state).
  double normal() noexcept;

 private:
  __extension__ using wide = unsigned __int128;

  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
