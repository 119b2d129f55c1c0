// The codec of a job's pushes, as workers encode and servers decode.
#pragma once

#include <cstddef>
#include <cstdint>

#include <muster/core/codec/compression.hpp>
#include <muster/core/hash.hpp>

#include <muster/ps/protocol/shard_map.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

/// Returns true if a push of so many values is sent encoded. The encoding of few values may be larger than the values.
[[nodiscard]] inline bool encoding_pays(const any_codec& codec, std::size_t value_count) {
  return codec.encoded_bytes(value_count) < value_count * sizeof(float);
}

/// Returns the random seed of a push's encoding. The seed depends only on the push's identity. So it is not
/// transmitted, and a repeated push has the same encoding.
[[nodiscard]] inline std::uint64_t draw_of_push(range_id range, const member& worker, std::uint64_t sequence) noexcept {
  return mix(mix((std::uint64_t{range} << 32 | worker.place) + 1) + (std::uint64_t{worker.incarnation} << 48) +
             sequence);
}

}}}  // namespace muster::v0::ps::detail
