// What must hold for any bytes whatever that are taken for words of the parameter server; for the fuzzer and for
// test_ps alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "ps/protocol/message.hpp"

namespace fuzz {

/// The bytes as a frame and as a map. Throws std::logic_error when something does not hold; returns how many messages
/// there were.
inline int check_ps(std::span<const std::uint8_t> data) {
  namespace ps = muster::ps;
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  };
  const auto bytes = std::as_bytes(data);
  const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
  if (const auto map = ps::shard_map::decode(text))
    require(map->encode() == text, "a map is not written as it was read");
  if (const auto entry = ps::decode_entry(bytes))
    require(entry->push.payload.size() + ps::log_entry_head_bytes == bytes.size(), "an entry has another size");
  if (!ps::decode_head(bytes)) return 0;
  int messages = 0;
  ps::message said;
  ps::message_reader in(bytes.subspan(ps::frame_head_bytes));
  std::size_t at = ps::frame_head_bytes;
  while (in.next(said)) {
    ++messages;
    const std::size_t size = ps::encoded_bytes(said.payload.size());
    require(at + size <= bytes.size(), "a message is longer than its frame");
    std::vector<std::byte> again(size);
    ps::encode(said, again.data());
    const auto used = ps::message_head_bytes + said.payload.size();
    require(std::equal(again.begin(), again.begin() + static_cast<std::ptrdiff_t>(used),
                       bytes.begin() + static_cast<std::ptrdiff_t>(at)),
            "a message is not written as it was read");
    at += size;
  }
  // The same with the rest behind the head of the first message as a payload that came by itself.
  constexpr auto heads = ps::frame_head_bytes + ps::message_head_bytes;
  if (bytes.size() > heads) {
    const auto apart = bytes.subspan(heads);
    ps::message_reader alone(bytes.subspan(ps::frame_head_bytes, ps::message_head_bytes), apart);
    if (alone.next(said))
      require(said.payload.data() == apart.data() && said.payload.size() == apart.size() && alone.is_complete(),
              "a payload that came by itself is another");
  }
  return messages;
}

}  // namespace fuzz
