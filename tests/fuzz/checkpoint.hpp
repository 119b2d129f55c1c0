// Properties of the checkpoint reader for any input bytes; used by the fuzzer and by test_checkpoint.
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

#include <muster/train/checkpoint_file.hpp>

namespace fuzz {

inline std::uint32_t crc_of_text(std::string_view text) { return muster::crc32c(std::as_bytes(std::span(text))); }

/// Returns a head and the parts, both with correct checksums, so that the reader reaches the parts.
inline std::string sealed(std::string_view parts) {
  std::string file("\x89MST\r\n\x1a\n", 8);
  const auto put = [&](auto value) { file.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(std::uint32_t{4});
  put(std::uint32_t{0x01020304});
  put(std::int32_t{-1});
  put(std::int32_t{1});
  put(std::uint64_t{77});
  put(0.5);
  put(muster::state_position());
  put(crc_of_text(file));
  file.append(parts);
  put(crc_of_text(file));
  return file;
}

/// Reads a checkpoint; returns false if it was rejected. Throws if the reader accepts an invalid checkpoint.
inline bool check_checkpoint(std::string_view text) {
  const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(text.data()),
                                     reinterpret_cast<const std::byte*>(text.data()) + text.size());
  try {
    const auto image = muster::detail::parse_checkpoint(bytes, "fuzzed");
    const std::byte* at = bytes.data();
    for (const auto& part : image.parts) {
      if (part.bytes.data() < at || part.bytes.data() + part.bytes.size() > bytes.data() + bytes.size())
        throw std::logic_error("a part is outside the file, or overlaps another part");
      at = part.bytes.data() + part.bytes.size();
    }
    return true;
  } catch (const muster::data_error& refused) {
    if (refused.file() != "fuzzed") throw std::logic_error("an error without its file");
    return false;
  }
}

}  // namespace fuzz
