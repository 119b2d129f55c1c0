#pragma once

#include <muster/core/codec/topk.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// Returns the magnitude as an integer. Integers have the order of the magnitudes, with NaN above all.
inline std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

/// The smallest magnitude that is sent, and the number of values with that magnitude that are sent.
struct threshold {
  std::uint32_t magnitude = 0;
  std::size_t ties = 0;
};

inline constexpr std::uint32_t bits_per_digit = 11;
inline constexpr std::size_t digit_values = std::size_t{1} << bits_per_digit;
using digit_counts = std::array<std::size_t, digit_values>;

/// Returns the digit that contains the rank-th largest value; subtracts the counts of larger digits from `rank`.
inline std::uint32_t digit_of(const digit_counts& counts, std::size_t& rank) {
  std::size_t digit = digit_values - 1;
  while (counts[digit] < rank) rank -= counts[digit--];
  return static_cast<std::uint32_t>(digit);
}

/// Finds the threshold by radix selection on the magnitudes, from the highest digit: 11, 11 and 9 bits. 1 <= rank <=
/// size.
inline threshold find_threshold(std::span<const float> values, std::size_t rank) {
  constexpr std::uint32_t first_shift = 31 - bits_per_digit;
  // Neighbouring values are similar, and increments to one counter would wait for each other. Four arrays take turns.
  std::array<std::array<std::uint32_t, digit_values>, 4> counts{};
  std::size_t i = 0;
  for (; i + 4 <= values.size(); i += 4) {
    for (std::size_t turn = 0; turn < 4; ++turn) ++counts[turn][magnitude(values[i + turn]) >> first_shift];
  }
  for (; i < values.size(); ++i) ++counts[0][magnitude(values[i]) >> first_shift];
  digit_counts all{};
  for (std::size_t digit = 0; digit < digit_values; ++digit) {
    for (const auto& part : counts) all[digit] += part[digit];
  }
  std::uint32_t prefix = digit_of(all, rank);

  std::vector<std::uint32_t> candidates(all[prefix] +
                                        1);  // one more, since each value is written before its digit is checked
  std::size_t found = 0;
  for (std::size_t k = 0; found < all[prefix]; ++k) {
    const std::uint32_t bits = magnitude(values[k]);
    candidates[found] = bits;
    found += bits >> first_shift == prefix ? 1 : 0;
  }
  candidates.pop_back();

  for (std::uint32_t shift = first_shift; shift > 0;) {
    const std::uint32_t width = std::min(bits_per_digit, shift);
    shift -= width;
    const std::uint32_t mask = (std::uint32_t{1} << width) - 1;
    all.fill(0);
    for (const std::uint32_t bits : candidates) ++all[bits >> shift & mask];
    prefix = prefix << width | digit_of(all, rank);
    std::erase_if(candidates, [&](std::uint32_t bits) { return bits >> shift != prefix; });
  }
  return {prefix, rank};
}

/// Returns places that contain all selected values and few others, according to a sample, so that only these places are
/// examined again. Returns nothing where the sample misleads, for example for many equal values. The selection is the
/// same in both cases.
inline std::vector<std::uint32_t> likely_places(std::span<const float> values, std::size_t count) {
  constexpr std::size_t samples = 2048;
  std::vector<std::uint32_t> places;
  if (values.size() < 2 * samples || count > values.size() / 4) return places;
  std::vector<std::uint32_t> sample(samples);
  for (std::size_t k = 0; k < samples; ++k) sample[k] = magnitude(values[k * (values.size() / samples)]);
  const double share = static_cast<double>(count) / static_cast<double>(values.size());
  const auto rank = static_cast<std::ptrdiff_t>(share * samples * 1.1 + 4 * std::sqrt(share * samples)) + 2;
  if (rank >= static_cast<std::ptrdiff_t>(samples)) return places;
  std::nth_element(sample.begin(), sample.begin() + rank, sample.end(), std::greater<>());
  const std::uint32_t lowest = sample[static_cast<std::size_t>(rank)];

  constexpr std::size_t stretch = 256;
  const std::size_t room = count + count / 2 + values.size() / 64;
  places.resize(room + stretch);
  std::size_t found = 0;
  for (std::size_t begin = 0; begin < values.size() && found <= room; begin += stretch) {
    const std::size_t end = std::min(values.size(), begin + stretch);
    for (std::size_t i = begin; i < end; ++i) {
      places[found] = static_cast<std::uint32_t>(i);
      found += magnitude(values[i]) >= lowest ? 1 : 0;
    }
  }
  places.resize(found < count || found > room ? 0 : found);
  return places;
}

/// Writes the places of the selected values, place_of(i) for the i-th value, and the values.
template <class Place>
void choose(std::span<const float> values, std::size_t chosen_count, std::uint32_t* indices, float* sent,
            const Place& place_of) {
  auto [smallest, ties] = find_threshold(values, chosen_count);
  // Each value is written at the place of the next selected value, and stays if it is selected. This avoids branches
  // that would be mispredicted.
  for (std::size_t i = 0, next = 0; next < chosen_count; ++i) {
    const std::uint32_t bits = magnitude(values[i]);
    indices[next] = place_of(i);
    sent[next] = values[i];
    const std::size_t tie = bits == smallest && ties > 0 ? 1 : 0;
    ties -= tie;
    next += bits > smallest ? 1 : tie;
  }
}

inline void require_countable(std::size_t count) {
  if (count <= std::size_t{1} << 32) return;
  throw configuration_error("top-k cannot take " + std::to_string(count) +
                            " values (it sends 32-bit indices); split them");
}

}  // namespace detail

MUSTER_INLINE topk_codec::topk_codec(double share) : share_(share) { (void)elements_of_share(share, 1); }

MUSTER_INLINE void topk_codec::encode(std::span<const float> values, std::uint64_t,
                                      std::span<std::byte> encoded) const {
  detail::require_room("topk", encoded, encoded_bytes(values.size()));
  detail::require_countable(values.size());
  const std::size_t chosen = elements_of_share(share_, values.size());
  if (chosen == 0) return;
  auto* const indices = reinterpret_cast<std::uint32_t*>(encoded.data());
  auto* const sent = reinterpret_cast<float*>(indices + chosen);
  const auto places = detail::likely_places(values, chosen);
  if (places.empty()) {
    detail::choose(values, chosen, indices, sent, [](std::size_t i) { return static_cast<std::uint32_t>(i); });
    return;
  }
  std::vector<float> likely(places.size());
  for (std::size_t k = 0; k < places.size(); ++k) likely[k] = values[places[k]];
  detail::choose(likely, chosen, indices, sent, [&](std::size_t k) { return places[k]; });
}

MUSTER_INLINE void topk_codec::decode_add(std::span<const std::byte> encoded, std::uint64_t, float weight,
                                          std::span<float> sums) const {
  detail::require_encoded("topk", encoded, encoded_bytes(sums.size()), sums.size());
  detail::require_countable(sums.size());
  const std::size_t chosen = elements_of_share(share_, sums.size());
  const auto* const indices = reinterpret_cast<const std::uint32_t*>(encoded.data());
  const auto* const sent = reinterpret_cast<const float*>(indices + chosen);
  for (std::size_t k = 0; k < chosen; ++k) {
    if (indices[k] >= sums.size() || (k > 0 && indices[k] <= indices[k - 1])) {
      detail::refuse_encoded("topk", k * sizeof(std::uint32_t),
                             "index " + std::to_string(indices[k]) + " is not below " + std::to_string(sums.size()) +
                                 " or not above the previous index");
    }
  }
  for (std::size_t k = 0; k < chosen; ++k) sums[indices[k]] += weight * sent[k];
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
