#pragma once

#include <muster/data/sources/tar.hpp>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/data/sources/text_format.hpp>  // quoted

namespace muster { inline namespace v0 { namespace data {
namespace detail {

/// Reads the members of an archive one after another, from the header at byte `begin` on.
class tar_reader {
 public:
  tar_reader(std::span<const std::byte> bytes, const std::string& path, std::uint64_t begin = 0)
      : text_(reinterpret_cast<const char*>(bytes.data()), bytes.size()), path_(path), at_(begin) {}

  /// Reads the next file. Returns false at the end of the archive.
  bool next(tar_member& member) {
    member = {.header = at_};
    std::optional<std::uint64_t> size;  // of a pax header
    for (;;) {
      const std::string_view block = text_.substr(at_, block_bytes);
      if (block.size() < block_bytes) refuse("ends within a header, or without the end of an archive");
      if (is_zero(block)) return finish();
      check_sum(block);
      const char type = block[156];
      const std::uint64_t written = number(block.substr(124, 12), "size"), content = at_ + block_bytes;
      const std::uint64_t bytes = type == 'x' || type == 'L' ? written : size.value_or(written);
      if (bytes > text_.size() - content)
        refuse("ends within the member " + detail::quoted(member.name.empty() ? name_in(block) : member.name) + " of " +
               std::to_string(bytes) + " bytes");
      const std::string_view value = text_.substr(content, bytes);
      if (type == 'x') read_pax(value, member.name, size);
      if (type == 'L') member.name = value.substr(0, value.find('\0'));
      const bool is_file = type == '0' || type == '\0' || type == '7';
      if (is_file && member.name.empty()) member.name = name_in(block);
      if (!is_file && std::string_view("xgLK5").find(type) == std::string_view::npos)
        refuse("has the member " + detail::quoted(name_in(block)) + ", which is a link or a special file");
      at_ = std::min<std::uint64_t>(content + (bytes + block_bytes - 1) / block_bytes * block_bytes, text_.size());
      if (is_file) {
        member.offset = content;
        member.size = bytes;
        return true;
      }
      if (type != '5') continue;
      member = {.header = at_};
      size.reset();
    }
  }

 private:
  static constexpr std::uint64_t block_bytes = 512;

  [[noreturn]] void refuse(const std::string& problem) const {
    throw data_error({path_, 0, 0, std::min<std::uint64_t>(at_, text_.size())},
                     problem + " (it is damaged, cut off, or no tar archive); copy, download or write it again");
  }
  static bool is_zero(std::string_view block) { return block.find_first_not_of('\0') == std::string_view::npos; }
  static std::string_view field(std::string_view block, std::size_t at, std::size_t size) {
    const std::string_view all = block.substr(at, size);
    return all.substr(0, all.find('\0'));
  }

  /// Zeros follow the last member. Members after them, as in files that were joined by cat, would be left out in
  /// silence.
  bool finish() const {
    const auto rest = text_.find_first_not_of('\0', at_);
    if (rest == std::string_view::npos) return false;
    throw data_error({path_, 0, 0, rest},
                     "has data after the end of the archive (several archives were joined); name "
                     "them as separate files");
  }

  std::uint64_t number(std::string_view digits, const char* called) const {
    std::uint64_t value = 0;
    if ((static_cast<unsigned char>(digits[0]) & 0x80) != 0) {  // GNU: 95 bits, big-endian
      for (const char c : digits.substr(digits.size() - 8)) value = value << 8 | static_cast<unsigned char>(c);
      return value;
    }
    digits = digits.substr(0, digits.find('\0'));
    const auto first = std::min(digits.find_first_not_of(' '), digits.size());
    digits = digits.substr(first, digits.find_last_not_of(' ') + 1 - first);
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 8);
    if (digits.empty() || code != std::errc() || end != digits.data() + digits.size())
      refuse(std::string("has a header whose ") + called + " is no number");
    return value;
  }

  void check_sum(std::string_view block) const {
    std::uint64_t sum = 8 * ' ';
    for (std::size_t k = 0; k < block.size(); ++k)
      if (k < 148 || k >= 156) sum += static_cast<unsigned char>(block[k]);
    if (sum != number(block.substr(148, 8), "checksum")) refuse("has a header that does not match its checksum");
  }

  static std::string name_in(std::string_view block) {
    const std::string_view prefix = field(block, 345, 155);
    const std::string name(field(block, 0, 100));
    return block.substr(257, 6) != std::string_view("ustar\0", 6) || prefix.empty() ? name
                                                                                    : std::string(prefix) + "/" + name;
  }

  /// Reads lines of pax, "LENGTH KEY=VALUE".
  void read_pax(std::string_view lines, std::string& name, std::optional<std::uint64_t>& size) const {
    while (!lines.empty()) {
      const auto blank = lines.find(' ');
      const auto length = parse_number<std::size_t>(lines.substr(0, blank));
      if (!length || *length > lines.size() || *length < blank + 2 || lines[*length - 1] != '\n')
        refuse("has a pax header that is no list of lines");
      const std::string_view line = lines.substr(blank + 1, *length - blank - 2);
      lines.remove_prefix(*length);
      if (line.starts_with("path=")) name = line.substr(5);
      if (!line.starts_with("size=")) continue;
      size = parse_number<std::uint64_t>(line.substr(5));
      if (!size) refuse("has a pax header whose size is no number");
    }
  }

  std::string_view text_;
  const std::string& path_;
  std::uint64_t at_;
};

}  // namespace detail

MUSTER_INLINE std::vector<detail::tar_member> detail::read_tar(std::span<const std::byte> bytes,
                                                               const std::string& path) {
  std::vector<tar_member> members;
  tar_reader reader(bytes, path);
  for (tar_member member; reader.next(member);) members.push_back(member);
  return members;
}

MUSTER_INLINE std::vector<std::string> detail::expand_ranges(const std::string& path) {
  constexpr std::uint64_t most = 1'000'000;
  const auto open = path.find('{'), dots = path.find("..", std::min(open, path.size())),
             close = path.find('}', std::min(open, path.size()));
  if (close == std::string::npos || dots > close || dots == open + 1 || dots + 2 == close) return {path};
  const std::string first = path.substr(open + 1, dots - open - 1), last = path.substr(dots + 2, close - dots - 2);
  const auto number = [&](const std::string& digits) {  // with zeros in front
    return parse_number<std::uint64_t>(digits.substr(std::min(digits.find_first_not_of('0'), digits.size() - 1)));
  };
  const auto from = number(first), to = number(last);
  if (!from || !to || *from > *to || *to - *from >= most)
    throw configuration_error("the range '" + path.substr(open, close + 1 - open) + "' in '" + path +
                              "' cannot be used (it has no numbers, descends, or has more than a million files); write "
                              "such as {000..127}");
  std::vector<std::string> paths;
  for (std::uint64_t k = 0; k <= *to - *from; ++k) {
    std::string digits = std::to_string(*from + k);
    digits.insert(0, first.size() - std::min(first.size(), digits.size()), '0');
    for (std::string& each : expand_ranges(path.substr(0, open) + digits + path.substr(close + 1)))
      paths.push_back(std::move(each));
    if (paths.size() > most) throw configuration_error("'" + path + "' has more than a million files; write fewer");
  }
  return paths;
}

}}}  // namespace muster::v0::data
