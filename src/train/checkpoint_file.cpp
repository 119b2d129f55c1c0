#include "checkpoint_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <type_traits>

#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>

#include "../core/round_up.hpp"
#include "../core/wire.hpp"

namespace muster::inline v0::detail {
namespace {

// As in PNG: a transfer that takes it for text damages the magic already.
constexpr std::array<unsigned char, 8> checkpoint_magic = {0x89, 'M', 'S', 'T', '\r', '\n', 0x1a, '\n'};
constexpr std::uint32_t current_version = 1;
constexpr std::uint32_t byte_order = 0x01020304;
constexpr std::size_t alignment = 64;

struct fixed_head {
  std::array<unsigned char, 8> magic;
  std::uint32_t version;
  std::uint32_t order;
  std::uint64_t file_bytes;
  std::uint64_t table_bytes;
  std::uint32_t table_crc;
  std::uint32_t head_crc;  // of all before it
};
static_assert(sizeof(fixed_head) == 40 && std::is_trivially_copyable_v<fixed_head>);

std::uint32_t crc_of(const fixed_head& head) {
  return crc32c(std::as_bytes(std::span(&head, 1)).first(sizeof head - sizeof head.head_crc));
}

constexpr std::array<std::byte, alignment> zeros{};

std::string table_of(const checkpoint_head& head, std::span<const checkpoint_part> parts) {
  wire_writer table;
  table.add(head.rank);
  table.add(head.id);
  table.add(head.metric);
  table.add(head.position);
  table.add(std::uint64_t{head.ranks.size()});
  for (const auto& rank : head.ranks) {
    table.add(rank.bytes);
    table.add(rank.crc);
  }
  table.add(std::uint64_t{parts.size()});
  for (const auto& part : parts) {
    table.add_text(part.name);
    table.add(std::uint64_t{part.bytes.size()});
    table.add(crc32c(part.bytes));
  }
  return table.take();
}

}  // namespace

checkpoint_rank write_checkpoint(const std::string& path, const checkpoint_head& head,
                                 std::span<const checkpoint_part> parts, const std::function<void()>& on_piece) {
  const auto text = table_of(head, parts);
  const auto table = std::as_bytes(std::span(text));
  fixed_head first{.magic = checkpoint_magic,
                   .version = current_version,
                   .order = byte_order,
                   .file_bytes = round_up(sizeof(fixed_head) + table.size(), alignment),
                   .table_bytes = table.size(),
                   .table_crc = crc32c(table),
                   .head_crc = 0};
  for (const auto& part : parts) first.file_bytes += round_up(part.bytes.size(), alignment);
  first.head_crc = crc_of(first);

  atomic_file file(path);
  std::uint32_t crc = 0;
  std::uint64_t on_disk = 0;
  const auto write = [&](std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto next = bytes.first(std::min(bytes.size(), checkpoint_piece));
      file.write(next);
      crc = crc32c(next, crc);
      bytes = bytes.subspan(next.size());
      if (file.size() - on_disk < checkpoint_piece) continue;
      file.flush_to_disk();
      on_disk = file.size();
      on_piece();
    }
    const auto gap = std::span(zeros).first(round_up(static_cast<std::size_t>(file.size()), alignment) -
                                            static_cast<std::size_t>(file.size()));
    return gap;
  };
  (void)write(std::as_bytes(std::span(&first, 1)));
  (void)write(write(table));
  for (const auto& part : parts) (void)write(write(part.bytes));
  file.commit();
  return {first.file_bytes, crc};
}

namespace {

[[noreturn]] void refuse_file(const std::string& name, std::size_t offset, const std::string& text) {
  throw data_error({.file = name, .offset = offset}, text);
}

/// Of a file of so many bytes that begins with these.
fixed_head parse_fixed_head(std::span<const std::byte> begin, std::uint64_t size, const std::string& name) {
  fixed_head first{};
  const std::size_t there = std::min(begin.size(), sizeof first);
  if (there > 0) std::memcpy(&first, begin.data(), there);
  if (there < checkpoint_magic.size() || first.magic != checkpoint_magic) {
    refuse_file(name, 0, "this is no checkpoint (it does not begin with the magic number); check the folder");
  }
  const std::string torn = "this checkpoint is cut off (it has " + std::to_string(size) + " bytes";
  if (there < sizeof first) refuse_file(name, there, torn + ", less than its head); use another one");
  if (first.order != byte_order) {
    refuse_file(name, 12,
                "this checkpoint cannot be read (it is of a machine of another byte order); use one of this kind of "
                "machine");
  }
  if (first.version != current_version) {
    refuse_file(name, 8,
                "this checkpoint cannot be read (it is of version " + std::to_string(first.version) +
                    ", and this muster knows version " + std::to_string(current_version) +
                    "); use the muster it was written with");
  }
  if (first.head_crc != crc_of(first))
    refuse_file(name, 0, "this checkpoint is damaged (the checksum of its head is wrong); use another one");
  if (first.file_bytes != size)
    refuse_file(name, static_cast<std::size_t>(size),
                torn + " of " + std::to_string(first.file_bytes) + "); use another one");
  if (first.table_bytes > size - sizeof first)
    refuse_file(name, sizeof first, "this checkpoint is damaged (its table is longer than the file); use another one");
  return first;
}

std::span<const std::byte> checked_table(std::span<const std::byte> bytes, const fixed_head& first,
                                         const std::string& name) {
  if (bytes.size() != first.table_bytes || first.table_crc != crc32c(bytes))
    refuse_file(name, sizeof first, "this checkpoint is damaged (the checksum of its table is wrong); use another one");
  return bytes;
}

void require_whole(bool whole, const std::string& name) {
  if (whole) return;
  throw data_error({.file = name},
                   "the table of this checkpoint is malformed (its checksum is right, so it was written like this); "
                   "use another checkpoint");
}

/// What stands in front of the parts.
checkpoint_head read_head(wire_reader& table) {
  checkpoint_head head;
  head.rank = table.number<std::uint32_t>();
  head.id = table.number<std::uint64_t>();
  head.metric = table.number<double>();
  head.position = table.number<state_position>();
  head.ranks.resize(table.count(12));
  for (auto& rank : head.ranks) {
    rank.bytes = table.number<std::uint64_t>();
    rank.crc = table.number<std::uint32_t>();
  }
  return head;
}

}  // namespace

checkpoint_image parse_checkpoint(std::span<const std::byte> file, const std::string& name) {
  const fixed_head first = parse_fixed_head(file, file.size(), name);
  const auto table_bytes =
      checked_table(file.subspan(sizeof first, static_cast<std::size_t>(first.table_bytes)), first, name);

  const auto require_zeros = [&](std::size_t begin) {  // what lies between parts has no checksum
    const auto gap = file.subspan(begin, std::min(round_up(begin, alignment) - begin, file.size() - begin));
    if (std::ranges::any_of(gap, [](std::byte byte) { return byte != std::byte{0}; }))
      refuse_file(name, begin, "this checkpoint is damaged (there are bytes between its parts); use another one");
  };
  require_zeros(sizeof first + table_bytes.size());

  wire_reader table(table_bytes);
  checkpoint_image image;
  image.head = read_head(table);
  const auto parts = table.count(20);
  std::size_t at = round_up(sizeof first + table_bytes.size(), alignment);
  for (std::uint64_t k = 0; k < parts; ++k) {
    checkpoint_part part{std::string(table.text()), {}};
    const auto bytes = table.number<std::uint64_t>();
    const auto crc = table.number<std::uint32_t>();
    if (at > file.size() || bytes > file.size() - at)
      refuse_file(name, at,
                  "this checkpoint is damaged (part '" + part.name + "' is longer than the file); use another one");
    part.bytes = file.subspan(at, static_cast<std::size_t>(bytes));
    if (crc32c(part.bytes) != crc)
      refuse_file(name, at,
                  "this checkpoint is damaged (the checksum of part '" + part.name + "' is wrong); use another one");
    require_zeros(at + part.bytes.size());
    at += round_up(part.bytes.size(), alignment);
    image.parts.push_back(std::move(part));
  }
  require_whole(table.whole(), name);
  if (at != file.size())
    refuse_file(name, at, "this checkpoint is damaged (there are bytes behind its parts); use another one");
  return image;
}

namespace {

/// A file that is read from its begin on.
class checkpoint_reader {
 public:
  explicit checkpoint_reader(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    std::error_code trouble;
    size_ = std::filesystem::file_size(path, trouble);
    if (trouble || !file_) fail();
  }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// Appends the next bytes of the file, so many or as many as there are.
  void read(std::vector<std::byte>& to, std::uint64_t most) {
    const std::size_t before = to.size();
    to.resize(before + static_cast<std::size_t>(most));
    file_.read(reinterpret_cast<char*>(to.data() + before), static_cast<std::streamsize>(most));
    if (file_.bad()) fail();
    to.resize(before + static_cast<std::size_t>(file_.gcount()));
  }

 private:
  [[noreturn]] void fail() const {
    throw data_error({.file = path_}, std::string("this checkpoint cannot be read (") + std::strerror(errno) +
                                          "); look at the file and its folder");
  }
  const std::string& path_;
  std::ifstream file_;
  std::uint64_t size_ = 0;
};

}  // namespace

checkpoint_head read_checkpoint_head(const std::string& path) {
  checkpoint_reader file(path);
  std::vector<std::byte> begin, bytes;
  file.read(begin, sizeof(fixed_head));
  const fixed_head first = parse_fixed_head(begin, file.size(), path);
  file.read(bytes, first.table_bytes);
  wire_reader table(checked_table(bytes, first, path));
  auto head = read_head(table);
  require_whole(table.good(), path);
  return head;
}

std::vector<std::byte> read_whole_file(const std::string& path, const std::function<void()>& on_piece) {
  checkpoint_reader file(path);
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<std::size_t>(file.size()));
  while (bytes.size() < file.size()) {
    const std::size_t before = bytes.size();
    file.read(bytes, std::min<std::uint64_t>(checkpoint_piece, file.size() - before));
    if (bytes.size() == before) break;  // shorter than it was
    on_piece();
  }
  return bytes;
}

}  // namespace muster::inline v0::detail
