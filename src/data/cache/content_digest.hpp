// The digest of much memory on several threads; private to muster's own sources.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <muster/core/hash.hpp>
#include "../parallel.hpp"

namespace muster { inline namespace v0 { namespace detail {

inline constexpr std::size_t digest_block_bytes = std::size_t{1} << 18;  // part of the digest's definition

/// The digest of one block, at the speed of memory: two words a step are multiplied, and the halves of the product
/// folded (the step of wyhash, https://github.com/wangyi-fudan/wyhash), in four chains, since one alone would wait for
/// its own multiplications.
inline std::uint64_t digest_block(std::span<const std::byte> bytes) noexcept {
  __extension__ using wide = unsigned __int128;
  std::array<std::uint64_t, 4> lanes{mix(1), mix(2), mix(3), mix(4)};
  const std::size_t steps = bytes.size() / (16 * lanes.size());
  for (std::size_t i = 0; i < steps; ++i) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      std::array<std::uint64_t, 2> words;
      std::memcpy(words.data(), bytes.data() + 16 * (i * lanes.size() + lane), sizeof words);
      const wide product = wide{words[0] ^ 0xa0761d6478bd642fULL} * (words[1] ^ lanes[lane]);
      lanes[lane] = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    }
  }
  digest all;
  for (const std::uint64_t lane : lanes) all.add(lane);
  return all.add(bytes.subspan(16 * steps * lanes.size())).value();
}

/// Adds how many bytes there are, and `count` blocks of so many of them (the last perhaps shorter), block i from
/// first(i) on.
template <class First>
void add_blocks(digest& to, std::span<const std::byte> bytes, int threads, std::size_t count, std::size_t size,
                const First& first) {
  std::vector<std::uint64_t> blocks(count);
  parallel_for(count, threads, [&](std::size_t i) {
    blocks[i] = digest_block(bytes.subspan(first(i), std::min(size, bytes.size() - first(i))));
  });
  to.add(std::uint64_t{bytes.size()});
  for (const std::uint64_t block : blocks) to.add(block);
}

/// Adds all of `bytes`.
inline void add_content(digest& to, std::span<const std::byte> bytes, int threads) {
  add_blocks(to, bytes, threads, (bytes.size() + digest_block_bytes - 1) / digest_block_bytes, digest_block_bytes,
             [](std::size_t i) { return i * digest_block_bytes; });
}

/// Adds what tells one large file from another without reading all of it: its size, and its content up to 256 MiB, else
/// that of 1,024 blocks of 64 KiB spread evenly over it, the first and the last among them.
inline void add_sampled_content(digest& to, std::span<const std::byte> bytes, int threads) {
  constexpr std::size_t whole = std::size_t{1} << 28;
  constexpr std::size_t samples = 1024;
  constexpr std::size_t sample_bytes = std::size_t{1} << 16;
  if (bytes.size() <= whole) return add_content(to, bytes, threads);
  const std::size_t step = (bytes.size() - sample_bytes) / (samples - 1);
  add_blocks(to, bytes, threads, samples, sample_bytes,
             [&](std::size_t i) { return i + 1 == samples ? bytes.size() - sample_bytes : i * step; });
}

}}}  // namespace muster::v0::detail
