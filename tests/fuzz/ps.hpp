// Properties of the parameter server's message parser for any input bytes; used by the fuzzer and by test_ps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include <muster/ps/protocol/message.hpp>

namespace fuzz {

/// Parses the bytes as a frame and as a map. Throws std::logic_error when a property does not hold; returns the number
/// of messages.
inline int check_ps(std::span<const std::uint8_t> data) {
  namespace ps = muster::ps;
  const auto require = [](bool holds, const char* property) {
    if (!holds) throw std::logic_error(property);
  };
  const auto bytes = std::as_bytes(data);
  const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
  if (const auto map = ps::shard_map::decode(text))
    require(map->encode() == text, "encoding a map again gives other bytes");
  if (const auto entry = ps::decode_entry(bytes))
    require(entry->push.payload.size() + ps::log_entry_head_bytes == bytes.size(), "an entry has another size");
  if (!ps::decode_head(bytes)) return 0;
  int messages = 0;
  ps::message message;
  ps::message_reader in(bytes.subspan(ps::frame_head_bytes));
  std::size_t at = ps::frame_head_bytes;
  while (in.next(message)) {
    ++messages;
    const std::size_t size = ps::encoded_bytes(message.payload.size());
    require(at + size <= bytes.size(), "a message is longer than its frame");
    std::vector<std::byte> again(size);
    ps::encode(message, again.data());
    const auto used = ps::message_head_bytes + message.payload.size();
    require(std::equal(again.begin(), again.begin() + static_cast<std::ptrdiff_t>(used),
                       bytes.begin() + static_cast<std::ptrdiff_t>(at)),
            "encoding a message again gives other bytes");
    at += size;
  }
  // Repeats this with the bytes after the head of the first message as a separate payload.
  constexpr auto heads = ps::frame_head_bytes + ps::message_head_bytes;
  if (bytes.size() > heads) {
    const auto apart = bytes.subspan(heads);
    ps::message_reader alone(bytes.subspan(ps::frame_head_bytes, ps::message_head_bytes), apart);
    if (alone.next(message))
      require(message.payload.data() == apart.data() && message.payload.size() == apart.size() && alone.is_complete(),
              "a payload received separately differs");
  }
  return messages;
}

}  // namespace fuzz
