// A shuffle without a table: the order of any number of samples in constant memory, and its inverse.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/data/order/permutation.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// An order of the ids 0 .. size - 1 that is computed and not stored. It needs a few bytes for any size up to 2^63, and
/// any position is computed in O(1). It is a Feistel network (Luby and Rackoff 1988, https://doi.org/10.1137/0217022)
/// over the least power of two that is not below the size, applied repeatedly until the result is an id below the size
/// (cycle walking; Black and Rogaway 2002, https://doi.org/10.1007/3-540-45760-7_9). This takes less than two
/// applications on average. The order is pseudorandom: the tests find no bias, but only 2^64 of the size! orders are
/// possible. The same on every platform.
class feistel_permutation {
 public:
  /// Creates the order of zero samples.
  feistel_permutation() = default;
  /// Throws configuration_error for more than 2^63 samples. O(1).
  feistel_permutation(std::uint64_t seed, std::uint64_t epoch, std::uint64_t size) : size_(size) {
    if (size > std::uint64_t{1} << 63) {
      throw configuration_error("cannot shuffle " + std::to_string(size) + " samples (an order has at most 2^63); " +
                                "divide the data");
    }
    constexpr std::uint64_t purpose = 0x6665697374656c00ULL;  // gives this use of the seed its own random numbers
    key_ = mix(mix(seed ^ purpose) + 0x9e3779b97f4a7c15ULL * (epoch + 1));
    // Few bits would give few networks: networks with two bits cannot produce all 24 orders of four samples.
    const unsigned bits = std::max(8u, static_cast<unsigned>(std::bit_width(size == 0 ? 0 : size - 1)));
    low_bits_ = bits - bits / 2;
    low_mask_ = (std::uint64_t{1} << low_bits_) - 1;
    high_mask_ = (std::uint64_t{1} << bits / 2) - 1;
  }

  /// Returns the number of samples.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Returns the sample at `position` < size() in the epoch.
  [[nodiscard]] sample_id operator[](std::uint64_t position) const noexcept {
    std::uint64_t at = encipher(position);
    while (at >= size_) at = encipher(at);
    return at;
  }

  /// Writes the samples at the positions [first, first + ids.size()) to `ids`. Faster than single look-ups.
  void fill(std::uint64_t first, std::span<sample_id> ids) const noexcept {
    // The computations for several positions overlap in the processor as long as nothing depends on their results.
    for (sample_id& id : ids) id = encipher(first++);
    for (sample_id& id : ids) {
      while (id >= size_) id = encipher(id);
    }
  }

  /// Returns the position of sample `id` < size(): the inverse of operator[].
  [[nodiscard]] std::uint64_t position_of(sample_id id) const noexcept {
    std::uint64_t at = id;
    do {
      std::uint64_t low = at & low_mask_;
      std::uint64_t high = at >> low_bits_;
      for (std::uint64_t round = rounds; round > 0; round -= 2) {
        low ^= mix(high + round_key(round - 1)) & low_mask_;
        high ^= mix(low + round_key(round - 2)) & high_mask_;
      }
      at = high << low_bits_ | low;
    } while (at >= size_);
    return at;
  }

 private:
  static constexpr std::uint64_t rounds = 6;  // four are sufficient in theory, with more bits than small data have

  [[nodiscard]] std::uint64_t encipher(std::uint64_t at) const noexcept {
    std::uint64_t low = at & low_mask_;
    std::uint64_t high = at >> low_bits_;
    for (std::uint64_t round = 0; round < rounds; round += 2) {
      high ^= mix(low + round_key(round)) & high_mask_;
      low ^= mix(high + round_key(round + 1)) & low_mask_;
    }
    return high << low_bits_ | low;
  }
  [[nodiscard]] std::uint64_t round_key(std::uint64_t round) const noexcept {
    return key_ + 0x9e3779b97f4a7c15ULL * (round + 1);
  }

  std::uint64_t key_ = 0;
  std::uint64_t size_ = 0;
  std::uint64_t low_mask_ = 0;
  std::uint64_t high_mask_ = 0;
  unsigned low_bits_ = 0;
};

}}}}  // namespace muster::v0::data::detail
