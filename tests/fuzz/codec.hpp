// Properties of the codecs' decoders for any input bytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <muster/core/codec/compression.hpp>
#include <muster/core/error.hpp>

namespace fuzz {

inline constexpr const char* codecs[] = {"none", "float16", "bfloat16", "qsgd8", "sign", "topk:0.1"};

/// Decodes the data. The first bytes select the codec, the number of values and the number of voters; the rest is the
/// encoded form. Throws std::logic_error when a property does not hold; returns true if the data were decoded.
inline bool check_codec(std::span<const std::uint8_t> data) {
  const auto require = [](bool holds, const char* property) {
    if (!holds) throw std::logic_error(property);
  };
  if (data.size() < 4) return false;
  const muster::any_codec coder(muster::parse_compression(codecs[data[0] % std::size(codecs)]));
  const std::size_t count = data[1] + std::size_t{256} * (data[2] % 8);
  const std::size_t voters = data[3] % 4 + 1;
  std::vector<std::uint32_t> aligned((data.size() + 3) / 4);
  const auto encoded = std::as_writable_bytes(std::span(aligned)).first(data.size() - 4);
  std::ranges::copy(std::as_bytes(data.subspan(4)), encoded.begin());

  std::vector<float> sums(count, 1.5f);
  const auto changed = [&] {
    std::size_t places = 0;
    for (const float sum : sums) places += std::bit_cast<std::uint32_t>(sum) != std::bit_cast<std::uint32_t>(1.5f);
    return places;
  };
  bool decoded = false;
  try {
    coder.decode_add(encoded, data[0], 0.5f, sums);
    decoded = true;
    require(encoded.size() == coder.encoded_bytes(count), "bytes of another size are decoded");
    if (coder.name().find(':') != std::string::npos)
      require(changed() <= muster::elements_of_share(0.1, count), "more elements are written than were sent");
  } catch (const muster::data_error& refused) {
    require(changed() == 0, "a rejected message changes the sums");
    require(refused.where().offset.has_value(), "the rejection names no byte");
    require(*refused.where().offset <= encoded.size() || encoded.size() < coder.encoded_bytes(count),
            "the rejection names a byte outside the message");
    require(std::string_view(refused.what()).find('\n') == std::string_view::npos, "the rejection has several lines");
  }
  if (coder.name() != "sign") return decoded;
  sums.assign(count, 1.5f);
  try {
    muster::majority_vote(encoded, voters, coder.encoded_bytes(count), sums);
    require(encoded.size() == voters * coder.encoded_bytes(count), "a vote accepts a wrong size");
    decoded = true;
  } catch (const muster::data_error&) {
    require(changed() == 0, "a rejected vote changes the result");
  }
  return decoded;
}

}  // namespace fuzz
