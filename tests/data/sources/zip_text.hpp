// Writes ZIP archives with and without faults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#ifdef MUSTER_HAS_ZLIB
#include <zlib.h>
#endif

namespace zip {

inline std::string number(std::uint64_t value, int bytes) {
  std::string text;
  for (int k = 0; k < bytes; ++k) text += static_cast<char>(value >> (8 * k) & 0xff);
  return text;
}

inline std::uint32_t crc32(const std::string& text) {
  std::uint32_t crc = 0xffffffff;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
  }
  return ~crc;
}

#ifdef MUSTER_HAS_ZLIB
inline std::string deflated(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}
#endif

/// A member. Numbers that differ from the content's are faults.
struct member {
  member(std::string called, std::string text)
      : name(std::move(called)), content(std::move(text)), size(content.size()), crc(crc32(content)) {}
  std::string name, content, deflated = {}, local_name = {};
  std::uint64_t size;
  std::uint32_t crc;
  std::uint64_t flags = 0, packed = 0;
  std::optional<std::uint64_t> method = {}, place = {};
};

struct layout {
  bool zip64 = false;  ///< writes all sizes and places as ZIP64
  std::uint64_t comment = 0;
  std::optional<std::uint64_t> count = {}, begin = {};
};

inline std::string archive(const std::vector<member>& members, const layout& chosen = {}) {
  std::string text, directory;
  for (const member& each : members) {
    const std::string& data = each.deflated.empty() ? each.content : each.deflated;
    const std::uint64_t place = each.place.value_or(text.size()), packed = each.packed != 0 ? each.packed : data.size(),
                        method = each.method.value_or(each.deflated.empty() ? 0 : 8);
    const std::string& local = each.local_name.empty() ? each.name : each.local_name;
    const std::string sizes = number(each.crc, 4) + number(packed, 4) + number(each.size, 4);
    text += "PK\3\4" + number(20, 2) + number(each.flags, 2) + number(method, 2) + number(0, 4) + sizes +
            number(local.size(), 2) + number(4, 2) + local + number(9, 2) + number(0, 2) + data;
    const std::string extra = chosen.zip64 ? number(7, 2) + number(3, 2) + "any" + number(1, 2) + number(24, 2) +
                                                 number(each.size, 8) + number(packed, 8) + number(place, 8)
                                           : "";
    const std::string hidden = number(0xffffffff, 4);
    directory += "PK\1\2" + number(0, 4) + number(each.flags, 2) + number(method, 2) + number(0, 4) +
                 number(each.crc, 4) + (chosen.zip64 ? hidden + hidden : number(packed, 4) + number(each.size, 4)) +
                 number(each.name.size(), 2) + number(extra.size(), 2) + number(3, 2) + number(0, 8) +
                 (chosen.zip64 ? hidden : number(place, 4)) + each.name + extra + "abc";
  }
  const std::uint64_t count = chosen.count.value_or(members.size()), begin = chosen.begin.value_or(text.size());
  const std::uint64_t end = text.size() + directory.size();
  text += directory;
  if (chosen.zip64)
    text += "PK\6\6" + number(44, 8) + number(0, 4) + number(0, 8) + number(count, 8) + number(count, 8) +
            number(directory.size(), 8) + number(begin, 8) + "PK\6\7" + number(0, 4) + number(end, 8) + number(1, 4);
  return text + "PK\5\6" + number(0, 4) + number(count, 2) + number(count, 2) + number(directory.size(), 4) +
         number(chosen.zip64 ? 0xffffffff : begin, 4) + number(chosen.comment, 2);
}

}  // namespace zip
