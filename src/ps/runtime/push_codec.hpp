// Pushes in fewer bytes: the codec of a job, as its workers encode and its servers decode.
#pragma once

#include <cstddef>
#include <cstdint>

#include <muster/core/codec/compression.hpp>
#include <muster/core/hash.hpp>

#include "../protocol/shard_map.hpp"

namespace muster { inline namespace v0 { namespace ps::detail {

/// Whether so many values of a push are sent encoded: few may be smaller as they are.
[[nodiscard]] inline bool encoding_pays(const any_codec& codec, std::size_t values) {
  return codec.encoded_bytes(values) < values * sizeof(float);
}

/// What is random about an encoding follows from which push it is, so that it need not be sent, and a push that is sent
/// again is the same.
[[nodiscard]] inline std::uint64_t draw_of_push(range_id range, const member& from, std::uint64_t sequence) noexcept {
  return mix(mix((std::uint64_t{range} << 32 | from.at) + 1) + (std::uint64_t{from.incarnation} << 48) + sequence);
}

}}}  // namespace muster::v0::ps::detail
