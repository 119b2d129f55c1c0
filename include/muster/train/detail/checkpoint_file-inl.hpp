#pragma once

#include <muster/train/checkpoint_file.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include <muster/core/atomic_file.hpp>
#include <muster/core/checked_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace detail {
// The magic number, designed like PNG's: a transfer that converts line ends already damages the magic.
inline constexpr std::string_view checkpoint_magic = "\x89MST\r\n\x1a\n";
inline constexpr std::uint32_t current_version = 4;
struct byte_order {  // its bytes have the order of the machine
  std::uint32_t mark = 0x01020304;
};
inline constexpr std::size_t head_bytes = 8 + 4 + 4 + 4 + 4 + 8 + 8 + sizeof(state_position) + 4;

inline std::string head_text(const checkpoint_head& head) {
  wire_writer text{std::string(checkpoint_magic)};
  text.add(current_version, byte_order(), head.rank, head.ranks, head.id, head.metric, head.position);
  std::string written = text.take();
  wire_writer with_crc(written);
  with_crc.add(crc32c(std::as_bytes(std::span(written))));
  return with_crc.take();
}

/// Parses the head of a file that begins with these bytes.
inline checkpoint_head parse_head(std::span<const std::byte> begin, const std::string& name) {
  const auto refuse = [&](std::size_t offset, const std::string& text) {
    throw data_error({.file = name, .offset = offset}, text);
  };
  wire_reader text(begin);
  if (text.chars(checkpoint_magic.size()) != checkpoint_magic)
    refuse(0, "this is not a checkpoint (the file does not begin with the magic number); check the folder");
  if (begin.size() < head_bytes) refuse(begin.size(), "this checkpoint is cut off (in its head); use another one");
  const auto version = text.number<std::uint32_t>();
  if (text.number<byte_order>().mark != byte_order().mark) {
    refuse(12,
           "this checkpoint cannot be read (it was saved on a machine with another byte order); use a checkpoint from "
           "a machine with the same byte order");
  }
  if (version != current_version) {
    refuse(8, "this checkpoint cannot be read (it has format version " + std::to_string(version) +
                  ", and this muster reads version " + std::to_string(current_version) +
                  "); use the version of muster that wrote it");
  }
  checkpoint_head head;
  text.read(head.rank, head.ranks, head.id, head.metric, head.position);
  if (text.number<std::uint32_t>() != crc32c(begin.first(head_bytes - sizeof(std::uint32_t))))
    refuse(0, "this checkpoint is damaged (its head has a wrong checksum); use another one");
  return head;
}

MUSTER_INLINE void write_checkpoint(const std::string& path, const checkpoint_head& head,
                                    std::span<const checkpoint_part> parts, const std::function<void()>& on_piece) {
  checked_file file(path, on_piece);
  file.write(head_text(head));
  for (const auto& part : parts) {
    wire_writer title;
    title.add_text(part.name);
    title.add(std::uint64_t{part.bytes.size()});
    file.write(title.take());
    file.write(part.bytes);
  }
  file.commit();
}

MUSTER_INLINE checkpoint_image parse_checkpoint(std::span<const std::byte> content, const std::string& name) {
  checkpoint_image image{.head = parse_head(content, name), .parts = {}};
  const std::size_t end = content.size() - std::min(content.size() - head_bytes, sizeof(std::uint32_t));
  if (wire_reader(content.subspan(end)).number<std::uint32_t>() != crc32c(content.first(end)) ||
      end + 4 != content.size()) {
    throw data_error({.file = name, .offset = end},
                     "this checkpoint is damaged or cut off (its checksum is wrong); use another one");
  }
  wire_reader text(content.subspan(head_bytes, end - head_bytes));
  while (text.good() && !text.rest().empty()) {
    std::string part(text.text());
    image.parts.push_back({std::move(part), text.bytes(text.number())});
  }
  if (text.good()) return image;
  throw data_error(
      {.file = name},
      "this checkpoint is malformed (its checksum is right, so it was written like this); use another one");
}

MUSTER_INLINE void require_checkpoint_folder(const std::string& folder) {
  std::error_code trouble;
  std::filesystem::create_directories(folder, trouble);
  if (trouble) {
    throw configuration_error("cannot create the folder of checkpoints '" + folder + "' (" + trouble.message() +
                              "); choose a folder whose parent is writable");
  }
  require_writable(folder + "/step");
}

MUSTER_INLINE checkpoint_head read_checkpoint_head(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require_readable(file.good(), path);
  std::vector<std::byte> begin(head_bytes);
  file.read(reinterpret_cast<char*>(begin.data()), head_bytes);
  begin.resize(static_cast<std::size_t>(file.gcount()));
  return parse_head(begin, path);
}

}}}  // namespace muster::v0::detail
