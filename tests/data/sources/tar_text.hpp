// Writes tar archives with and without faults.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace tar {

/// Returns a header of ustar. `size` is the text of the size field.
inline std::string header(const std::string& name, const std::string& size, char type = '0') {
  std::string block(512, '\0');
  block.replace(0, name.size(), name);
  block.replace(100, 7, "0000644");
  block.replace(124, size.size(), size);
  block.replace(156, 1, 1, type);
  block.replace(257, 8,
                std::string("ustar\0"
                            "00",
                            8));
  block.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  char text[8];
  std::snprintf(text, sizeof text, "%06o", sum);
  block.replace(148, 7, text, 7);
  return block;
}

inline std::string octal(std::uint64_t size) {
  char text[12];
  std::snprintf(text, sizeof text, "%011llo", static_cast<unsigned long long>(size));
  return text;
}

inline std::string padded(std::string content) {
  content.resize((content.size() + 511) / 512 * 512, '\0');
  return content;
}

inline std::string member(const std::string& name, const std::string& content, char type = '0') {
  return header(name, octal(content.size()), type) + padded(content);
}

inline std::string end() { return std::string(1024, '\0'); }

}  // namespace tar
