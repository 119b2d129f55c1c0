// The digest of large memory areas, computed by several threads. Private to muster's own sources.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <muster/core/hash.hpp>
#include <muster/data/parallel.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

inline constexpr std::size_t digest_block_bytes = std::size_t{1} << 18;  // part of the digest's definition

/// Returns the digest of one block, at memory bandwidth. Two words a step are multiplied, and the halves of the product
/// are combined (the step of wyhash, https://github.com/wangyi-fudan/wyhash). There are four independent chains,
/// because a single chain would wait for its own multiplications.
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

/// Adds the size of `bytes`, and the digests of `count` blocks of `size` bytes (the last block may be shorter). Block i
/// begins at first(i).
template <class First>
void add_blocks(digest& result, std::span<const std::byte> bytes, int threads, std::size_t count, std::size_t size,
                const First& first) {
  std::vector<std::uint64_t> blocks(count);
  parallel_for(count, threads, [&](std::size_t i) {
    blocks[i] = digest_block(bytes.subspan(first(i), std::min(size, bytes.size() - first(i))));
  });
  result.add(std::uint64_t{bytes.size()});
  for (const std::uint64_t block : blocks) result.add(block);
}

/// Adds the whole contents of `bytes`.
inline void add_content(digest& result, std::span<const std::byte> bytes, int threads) {
  add_blocks(result, bytes, threads, (bytes.size() + digest_block_bytes - 1) / digest_block_bytes, digest_block_bytes,
             [](std::size_t i) { return i * digest_block_bytes; });
}

/// Adds a digest that distinguishes large files without reading them completely: the size, and all contents of files up
/// to 256 MiB. For larger files it adds the contents of 1,024 evenly spaced blocks of 64 KiB, including the first and
/// the last block.
inline void add_sampled_content(digest& result, std::span<const std::byte> bytes, int threads) {
  constexpr std::size_t most_whole_bytes = std::size_t{1} << 28;
  constexpr std::size_t samples = 1024;
  constexpr std::size_t sample_bytes = std::size_t{1} << 16;
  if (bytes.size() <= most_whole_bytes) return add_content(result, bytes, threads);
  const std::size_t step = (bytes.size() - sample_bytes) / (samples - 1);
  add_blocks(result, bytes, threads, samples, sample_bytes,
             [&](std::size_t i) { return i + 1 == samples ? bytes.size() - sample_bytes : i * step; });
}

}}}}  // namespace muster::v0::data::detail
