#include <muster/core/codec/blockk.hpp>

#include <algorithm>

#include <muster/core/random.hpp>

namespace muster::inline v0 {
namespace {

/// The block in its two runs: `front` values from `begin` on, the others from the front on.
struct block_of_draw {
  std::size_t begin = 0, front = 0;

  block_of_draw(std::size_t count, std::size_t chosen, std::uint64_t draw)
      : begin(random_stream(draw, 2).below(count)), front(std::min(chosen, count - begin)) {}
};

}  // namespace

blockk_codec::blockk_codec(double share) : share_(share) { (void)elements_of_share(share, 1); }

void blockk_codec::encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const {
  detail::require_room("blockk", encoded, encoded_bytes(values.size()));
  const std::size_t chosen = elements_of_share(share_, values.size());
  if (chosen == 0) return;
  auto* const sent = reinterpret_cast<float*>(encoded.data());
  const block_of_draw block(values.size(), chosen, draw);
  std::ranges::copy(values.subspan(block.begin, block.front), sent);
  std::ranges::copy(values.first(chosen - block.front), sent + block.front);
}

void blockk_codec::decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight,
                              std::span<float> sums) const {
  detail::require_encoded("blockk", encoded, encoded_bytes(sums.size()), sums.size());
  const std::size_t chosen = elements_of_share(share_, sums.size());
  if (chosen == 0) return;
  const auto* const sent = reinterpret_cast<const float*>(encoded.data());
  const block_of_draw block(sums.size(), chosen, draw);
  for (std::size_t i = 0; i < block.front; ++i) sums[block.begin + i] += weight * sent[i];
  for (std::size_t i = block.front; i < chosen; ++i) sums[i - block.front] += weight * sent[i];
}

}  // namespace muster::inline v0
