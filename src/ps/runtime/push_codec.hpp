// Pushes in fewer bytes: the codec of a job, as its workers encode and its servers decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/core/codec/compression.hpp>
#include <muster/core/hash.hpp>

#include "../protocol/member.hpp"
#include "../protocol/shard_map.hpp"

namespace muster::inline v0::ps::detail {

/// Of so many values, those of one push to one range. What is random about an encoding follows from which push it is,
/// so that it need not be sent, and a push that is said again is the same.
class push_codec {
 public:
  push_codec() = default;
  /// Throws configuration_error for powersgd, as `any_codec` does.
  explicit push_codec(const compression& how) : codec_(how), on_(how.method != compression_method::none) {}

  /// Whether so many values are sent encoded: few may be smaller as they are.
  [[nodiscard]] bool pays(std::size_t values) const { return on_ && bytes(values) < values * sizeof(float); }
  [[nodiscard]] std::size_t bytes(std::size_t values) const { return codec_.encoded_bytes(values); }
  [[nodiscard]] const any_codec& codec() const noexcept { return codec_; }
  [[nodiscard]] static std::uint64_t draw(range_id range, const member& from, std::uint64_t sequence) noexcept {
    return mix(mix((std::uint64_t{range} << 32 | from.at) + 1) + (std::uint64_t{from.incarnation} << 48) + sequence);
  }

 private:
  any_codec codec_;
  bool on_ = false;
};

}  // namespace muster::inline v0::ps::detail
