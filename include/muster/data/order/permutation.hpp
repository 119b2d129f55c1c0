// The order of an epoch as a function of (seed, epoch, number of samples).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/cursor.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// An order of the ids 0 .. size - 1. All orders of few samples are equally likely over seeds and epochs; of many
/// samples only 2^64 of the size! orders are possible. An order is the same on every platform. It is the shuffle of
/// Fisher and Yates (Durstenfeld 1964, https://doi.org/10.1145/364520.364540) with a random_stream for (seed, epoch).
/// Holds a table of 4 bytes a sample.
class permutation {
 public:
  /// Creates the order of zero samples.
  permutation() = default;
  permutation(std::uint64_t seed, std::uint64_t epoch, std::uint64_t size) { assign(seed, epoch, size); }

  /// Becomes another order. Reuses the present memory if its size is sufficient. O(size). Throws configuration_error
  /// for more than 2^32 samples.
  void assign(std::uint64_t seed, std::uint64_t epoch, std::uint64_t size) {
    if (size > std::uint64_t{1} << 32) {
      throw configuration_error(
          "cannot shuffle " + std::to_string(size) +
          " samples (the table of an exact order has 32 bits a sample); use fewer, or file order");
    }
    ids_.resize(size);
    for (std::uint64_t i = 0; i < size; ++i) ids_[i] = static_cast<std::uint32_t>(i);
    constexpr std::uint64_t purpose = 0x7065726d75746174ULL;  // gives this use of the seed its own random numbers
    random_stream random(mix(seed ^ purpose), epoch);
    // The random indices do not depend on the swaps. Drawing them `ahead` steps early allows their cache lines in a
    // large table to be prefetched.
    constexpr std::uint64_t ahead = 64;
    std::array<std::uint32_t, ahead> drawn;
    std::uint64_t next = size;
    const auto draw = [&] {
      const auto place = static_cast<std::uint32_t>(random.below(next));
      __builtin_prefetch(&ids_[place], 1);
      drawn[next-- % ahead] = place;
    };
    while (next > 1 && size - next < ahead) draw();
    for (std::uint64_t i = size; i > 1; --i) {
      std::swap(ids_[i - 1], ids_[drawn[i % ahead]]);
      if (next > 1) draw();
    }
  }

  /// Returns the number of samples.
  [[nodiscard]] std::uint64_t size() const noexcept { return ids_.size(); }
  /// Returns the sample at `position` < size() in the epoch.
  [[nodiscard]] sample_id operator[](std::uint64_t position) const noexcept { return ids_[position]; }

 private:
  std::vector<std::uint32_t> ids_;
};

}}}}  // namespace muster::v0::data::detail
