// What must hold for any bytes whatever that are read as a checkpoint; for the fuzzer and for test_checkpoint alike.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>

#include "train/checkpoint_file.hpp"

namespace fuzz {

inline std::uint32_t crc_of_text(std::string_view text) { return muster::crc32c(std::as_bytes(std::span(text))); }

/// A head, with right checksums, in front of a table and what follows: behind those, it is the table that is read. The
/// first two bytes say how long the table is.
inline std::string sealed(std::string_view body) {
  const std::size_t asked =
      body.size() < 2 ? 0 : static_cast<unsigned char>(body[0]) * 256u + static_cast<unsigned char>(body[1]);
  if (body.size() >= 2) body.remove_prefix(2);
  const std::uint64_t table = std::min(asked, body.size());
  std::string head("\x89MST\r\n\x1a\n", 8);
  const auto put = [&](auto value) { head.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(std::uint32_t{1});
  put(std::uint32_t{0x01020304});
  put(std::uint64_t{40 + body.size()});
  put(table);
  put(crc_of_text(body.substr(0, table)));
  put(crc_of_text(head));
  return head + std::string(body);
}

/// Reads it; false when it is refused. Throws when it is read as something that it is not.
inline bool check_checkpoint(std::string_view text) {
  const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(text.data()),
                                     reinterpret_cast<const std::byte*>(text.data()) + text.size());
  try {
    const auto image = muster::detail::parse_checkpoint(bytes, "fuzzed");
    const std::byte* at = bytes.data();
    for (const auto& part : image.parts) {
      if (part.bytes.data() < at || part.bytes.data() + part.bytes.size() > bytes.data() + bytes.size())
        throw std::logic_error("a part is outside of the file, or lies on another");
      at = part.bytes.data() + part.bytes.size();
    }
    return true;
  } catch (const muster::data_error& refused) {
    if (refused.file() != "fuzzed") throw std::logic_error("an error without its file");
    return false;
  }
}

}  // namespace fuzz
