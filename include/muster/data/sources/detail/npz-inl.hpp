#pragma once

#include <muster/data/sources/npz.hpp>

#include <algorithm>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include <muster/core/crc_tables.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>
#include <muster/data/sources/array_file.hpp>
#include <muster/data/sources/text_format.hpp>  // quoted

namespace muster { inline namespace v0 { namespace data {
namespace detail {

/// The parts of a ZIP archive, read from its end.
class zip_reader {
 public:
  zip_reader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  std::vector<zip_member> read() {
    const auto [begin, end, count] = directory();
    muster::detail::wire_reader entries(bytes_.subspan(begin, end - begin));
    std::vector<zip_member> members;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;  // begin of the local header, end of the data
    for (std::uint64_t k = 0; k < count; ++k) {
      at_ = end - entries.rest().size();
      extents.push_back(read_entry(entries, members.emplace_back(), begin));
    }
    at_ = end - entries.rest().size();
    if (!entries.rest().empty()) refuse("has a directory with more than its " + std::to_string(count) + " members");
    std::vector<std::string_view> names;
    for (const zip_member& member : members) names.push_back(member.name);
    std::ranges::sort(names);
    if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
      refuse("has the member " + detail::quoted(*twice) + " twice");
    std::ranges::sort(extents);
    const auto overlap = [](const auto& a, const auto& b) { return b.first < a.second; };
    if (std::ranges::adjacent_find(extents, overlap) != extents.end()) refuse("has members that overlap");
    return members;
  }

 private:
  struct place {
    std::uint64_t begin, end, count;
  };
  static constexpr std::uint64_t end_bytes = 22, locator_bytes = 20, end64_bytes = 56;

  [[noreturn]] void refuse(const std::string& problem) const {
    throw data_error({path_, 0, 0, std::min<std::uint64_t>(at_, bytes_.size())},
                     problem + "; copy, download or write it again");
  }
  muster::detail::wire_reader reader_at(std::uint64_t at) {
    at_ = at;
    return muster::detail::wire_reader(bytes_.subspan(std::min<std::uint64_t>(at, bytes_.size())));
  }

  /// Finds the directory from the end of the archive.
  place directory() {
    constexpr std::string_view mark = "PK\5\6";
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
    if (!text.starts_with("PK")) refuse("is not a ZIP archive (it does not begin with PK)");
    std::uint64_t end = text.size() < end_bytes ? text.npos : text.rfind(mark, text.size() - end_bytes);
    at_ = text.size();
    if (end == text.npos || end + end_bytes + reader_at(end + 20).number<std::uint16_t>() != text.size())
      refuse("has no directory at its end (it is cut off, or has bytes after the directory)");
    muster::detail::wire_reader record = reader_at(end + 4);
    const auto disk = record.number<std::uint16_t>(), disk_of_directory = record.number<std::uint16_t>();
    std::uint64_t here = record.number<std::uint16_t>(), count = record.number<std::uint16_t>();
    std::uint64_t size = record.number<std::uint32_t>(), begin = record.number<std::uint32_t>();
    constexpr std::uint32_t in_zip64 = 0xffffffff;
    if (count == 0xffff || size == in_zip64 || begin == in_zip64) {
      muster::detail::wire_reader locator = reader_at(end - std::min(end, locator_bytes));
      const bool is_locator = locator.chars(4) == "PK\6\7";
      (void)locator.number<std::uint32_t>();
      end = locator.number<std::uint64_t>();
      muster::detail::wire_reader record64 = reader_at(end);
      if (!is_locator || record64.chars(4) != "PK\6\6") refuse("has no ZIP64 directory where it is required");
      (void)record64.bytes(20);
      record64.read(here, count, size, begin);
      if (!record64.good()) refuse("ends within its ZIP64 directory");
    }
    if (disk != 0 || disk_of_directory != 0 || here != count) refuse("is a part of an archive of several files");
    if (begin > end || size != end - begin) refuse("has a directory whose size does not fit its place");
    constexpr std::uint64_t least_entry = 46;
    if (count > size / least_entry) refuse("has a directory that is too short for its members");
    return {begin, end, count};
  }

  /// Reads the ZIP64 sizes, which replace numbers that do not fit 32 bits.
  void read_zip64(std::span<const std::byte> extra, std::initializer_list<std::uint64_t*> numbers) const {
    for (muster::detail::wire_reader fields(extra); fields.rest().size() >= 4;) {
      const auto kind = fields.number<std::uint16_t>();
      muster::detail::wire_reader field(fields.bytes(fields.number<std::uint16_t>()));
      if (kind != 1) continue;
      for (std::uint64_t* number : numbers)
        if (*number == 0xffffffff) *number = field.number<std::uint64_t>();
      if (!field.good()) refuse("has a ZIP64 field that is too short");
    }
  }

  /// Reads an entry of the directory. Returns the extent of the member in the archive.
  std::pair<std::uint64_t, std::uint64_t> read_entry(muster::detail::wire_reader& entries, zip_member& member,
                                                     std::uint64_t end) {
    if (entries.chars(4) != "PK\1\2") refuse("has a directory without an entry where one must be");
    (void)entries.bytes(4);  // versions
    const auto flags = entries.number<std::uint16_t>(), method = entries.number<std::uint16_t>();
    (void)entries.bytes(4);  // time
    member.crc = entries.number<std::uint32_t>();
    member.packed = entries.number<std::uint32_t>();
    member.size = entries.number<std::uint32_t>();
    const auto name_bytes = entries.number<std::uint16_t>(), extra_bytes = entries.number<std::uint16_t>(),
               comment_bytes = entries.number<std::uint16_t>();
    (void)entries.bytes(8);  // disk, attributes
    std::uint64_t local = entries.number<std::uint32_t>();
    member.name = entries.chars(name_bytes);
    const auto extra = entries.bytes(extra_bytes);
    (void)entries.bytes(comment_bytes);
    if (!entries.good()) refuse("has a directory that ends within an entry");
    read_zip64(extra, {&member.size, &member.packed, &local});
    const std::string called = "has the member " + detail::quoted(member.name);
    if ((flags & 1) != 0) refuse(called + ", which is encrypted");
    if (method != 0 && method != 8)
      refuse(called + ", which is compressed by method " + std::to_string(method) + " (only deflate is read)");
    member.is_deflated = method == 8;
    if (!member.is_deflated && member.size != member.packed) refuse(called + " with two sizes, although it is stored");

    muster::detail::wire_reader header = reader_at(local);
    const bool is_header = header.chars(4) == "PK\3\4";
    (void)header.bytes(22);  // the directory has these numbers, too
    const std::uint64_t local_name = header.number<std::uint16_t>(), local_extra = header.number<std::uint16_t>();
    if (!is_header || header.chars(local_name) != member.name || !header.good())
      refuse(called + " without a header of this name at its place");
    member.offset = local + 30 + local_name + local_extra;
    if (local >= end || member.offset > end || member.packed > end - member.offset)
      refuse(called + ", which ends beyond the data (it has " + std::to_string(member.packed) + " bytes)");
    return {local, member.offset + member.packed};
  }

  std::span<const std::byte> bytes_;
  const std::string& path_;
  std::uint64_t at_ = 0;  // byte that an error names
};

/// Throws data_error if the data of a stored member do not have the CRC-32 of the directory.
inline void check_stored(const mapped_file& archive, const zip_member& member, const std::string& name) {
  const auto data = archive.bytes().subspan(member.offset, member.size);
  if (muster::detail::crc_by_tables<muster::detail::crc32_polynomial>(data) != member.crc)
    throw data_error({name}, "has a wrong checksum (its bytes are damaged); copy, download or write it again");
  archive.forget();
}

/// Returns the file of a deflated member. The member gets the frame of gzip, so that its decoder checks size and
/// CRC-32.
inline std::shared_ptr<const mapped_file> inflated(const mapped_file& archive, const zip_member& member,
                                                   const std::string& name) {
  const auto data = archive.bytes().subspan(member.offset, member.packed);
  muster::detail::wire_writer gzip(std::string("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10));
  gzip.add_bytes(data);
  gzip.add(member.crc, static_cast<std::uint32_t>(member.size));
  return std::make_shared<const mapped_file>(archive, gzip.take(), name, member.size);
}

}  // namespace detail

MUSTER_INLINE std::vector<detail::zip_member> detail::read_zip(std::span<const std::byte> bytes,
                                                               const std::string& path) {
  return zip_reader(bytes, path).read();
}

MUSTER_INLINE fixed_records open_npz(const std::string& path, const std::string& array, const std::string& labels,
                                     const http_options& http) {
  constexpr std::string_view ending = ".npy";
  const auto archive = std::make_shared<const mapped_file>(path, compressed_files::as_they_are, http);
  std::vector<detail::named_array> arrays;
  for (const auto& member : detail::read_zip(archive->bytes(), path)) {
    if (!member.name.ends_with(ending)) continue;
    const auto open = [archive, member, name = path + "/" + member.name]() -> detail::array_file {
      if (!member.is_deflated) detail::check_stored(*archive, member, name);
      auto file = member.is_deflated ? detail::inflated(*archive, member, name) : archive;
      const std::uint64_t begin = member.is_deflated ? 0 : member.offset;
      auto header = detail::read_npy_header(file->bytes().subspan(begin, member.size), name);
      header.bytes += begin;
      return {std::move(file), std::move(header)};
    };
    arrays.push_back({member.name.substr(0, member.name.size() - ending.size()), open});
  }
  return detail::open_named_arrays("npz:" + path, path, arrays, array, labels, "array");
}

}}}  // namespace muster::v0::data
