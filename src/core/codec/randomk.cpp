#include <muster/core/codec/randomk.hpp>

#include <muster/core/random.hpp>

#include "draws.hpp"

namespace muster::inline v0 {
namespace {

/// visit(i, place of the i-th of `chosen`) for each; 1 <= chosen <= count.
template <class Visit>
void for_each_place(std::size_t count, std::size_t chosen, std::uint64_t draw, const Visit& visit) {
  const detail::draw_key key(draw);
  const std::size_t offset = random_stream(draw, 1).below(count);
  const std::size_t shortest = count / chosen;
  const std::size_t longer = count % chosen;  // so many stretches are longer by one, evenly spread
  std::size_t begin = 0;
  for (std::size_t i = 0, carried = 0; i < chosen; ++i) {
    carried += longer;
    const std::size_t length = shortest + (carried >= chosen ? 1 : 0);
    if (carried >= chosen) carried -= chosen;
    // Lemire's multiplication without its rejection: a place is off its probability by less than length * 2^-32 of it.
    const std::size_t within = std::uint64_t{key(static_cast<std::uint32_t>(i))} * length >> 32;
    const std::size_t place = begin + within + offset;
    visit(i, place < count ? place : place - count);
    begin += length;
  }
}

}  // namespace

randomk_codec::randomk_codec(double share) : share_(share) { (void)elements_of_share(share, 1); }

void randomk_codec::encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const {
  detail::require_room("randomk", encoded, encoded_bytes(values.size()));
  const std::size_t chosen = elements_of_share(share_, values.size());
  if (chosen == 0) return;
  auto* const sent = reinterpret_cast<float*>(encoded.data());
  for_each_place(values.size(), chosen, draw, [&](std::size_t i, std::size_t place) { sent[i] = values[place]; });
}

void randomk_codec::decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight,
                               std::span<float> sums) const {
  detail::require_encoded("randomk", encoded, encoded_bytes(sums.size()), sums.size());
  const std::size_t chosen = elements_of_share(share_, sums.size());
  if (chosen == 0) return;
  const auto* const sent = reinterpret_cast<const float*>(encoded.data());
  for_each_place(sums.size(), chosen, draw, [&](std::size_t i, std::size_t place) { sums[place] += weight * sent[i]; });
}

}  // namespace muster::inline v0
