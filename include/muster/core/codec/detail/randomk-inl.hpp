#pragma once

#include <muster/core/codec/randomk.hpp>

#include <algorithm>

#include <muster/core/codec/draws.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/random.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

// Both classes call visit(i, place, length) for each run of selected values. The run begins with the i-th of the
// `chosen` values. 1 <= chosen <= count.

struct detail::random_places {
  static constexpr std::string_view name = "randomk";

  template <class Visit>
  static void for_each_run(std::size_t count, std::size_t chosen_count, std::uint64_t draw, const Visit& visit) {
    const draw_key key(draw);
    const std::size_t offset = random_stream(draw, 1).below(count);
    const std::size_t shortest = count / chosen_count;
    const std::size_t longer = count % chosen_count;  // number of intervals that are longer by one, evenly spread
    std::size_t begin = 0;
    for (std::size_t i = 0, carried = 0; i < chosen_count; ++i) {
      carried += longer;
      const std::size_t length = shortest + (carried >= chosen_count ? 1 : 0);
      if (carried >= chosen_count) carried -= chosen_count;
      // Lemire's multiplication without its rejection: the relative error of a place's probability is less than length
      // * 2^-32.
      const std::size_t within = std::uint64_t{key(static_cast<std::uint32_t>(i))} * length >> 32;
      const std::size_t place = begin + within + offset;
      visit(i, place < count ? place : place - count, std::integral_constant<std::size_t, 1>());
      begin += length;
    }
  }
};

struct detail::random_block {
  static constexpr std::string_view name = "blockk";

  template <class Visit>
  static void for_each_run(std::size_t count, std::size_t chosen_count, std::uint64_t draw, const Visit& visit) {
    const std::size_t begin = random_stream(draw, 2).below(count);
    const std::size_t front = std::min(chosen_count, count - begin);
    visit(0, begin, front);
    visit(front, 0, chosen_count - front);
  }
};

template <class Places>
drawn_codec<Places>::drawn_codec(double share) : share_(share) {
  (void)elements_of_share(share, 1);
}

template <class Places>
void drawn_codec<Places>::encode(std::span<const float> values, std::uint64_t draw,
                                 std::span<std::byte> encoded) const {
  detail::require_room(Places::name, encoded, encoded_bytes(values.size()));
  auto* const sent = reinterpret_cast<float*>(encoded.data());
  if (values.empty()) return;
  Places::for_each_run(values.size(), elements_of_share(share_, values.size()), draw,
                       [&](std::size_t i, std::size_t place, auto length) {
                         std::ranges::copy(values.subspan(place, length), sent + i);
                       });
}

template <class Places>
void drawn_codec<Places>::decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight,
                                     std::span<float> sums) const {
  detail::require_encoded(Places::name, encoded, encoded_bytes(sums.size()), sums.size());
  const auto* const sent = reinterpret_cast<const float*>(encoded.data());
  if (sums.empty()) return;
  Places::for_each_run(sums.size(), elements_of_share(share_, sums.size()), draw,
                       [&](std::size_t i, std::size_t place, auto length) {
                         for (std::size_t k = 0; k < length; ++k) sums[place + k] += weight * sent[i + k];
                       });
}

#ifdef MUSTER_COMPILED
template class drawn_codec<detail::random_places>;
template class drawn_codec<detail::random_block>;
#endif

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
