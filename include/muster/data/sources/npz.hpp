// Archives of arrays that numpy.savez and numpy.savez_compressed write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 { namespace data {

/// Opens an array of an NPZ file as records, like open_npy(). `array` may be empty if the file has a single array
/// beside the labels. `labels` names an array with the labels; empty: the records have no labels. A stored array is
/// mapped. A compressed array is decompressed like a compressed text (see mapped_file), which needs muster::zlib. The
/// checksum of an array is verified when it is opened, which reads all bytes. Throws data_error naming the file and the
/// array.
[[nodiscard]] fixed_records open_npz(const std::string& path, const std::string& array = "",
                                     const std::string& labels = "", const http_options& http = {});

namespace detail {

/// A file in a ZIP archive.
struct zip_member {
  std::string name;
  bool is_deflated = false;
  std::uint64_t offset = 0;  ///< first byte of the data in the archive
  std::uint64_t packed = 0;  ///< size of the data in the archive
  std::uint64_t size = 0;    ///< size of the file
  std::uint32_t crc = 0;     ///< CRC-32 of the file
};

/// Reads the directory of a ZIP archive (APPNOTE.TXT 6.3.10, also ZIP64) from the bytes of the archive. Throws
/// data_error, which names `path`, the byte and the member, unless all members are stored or deflated, have different
/// names, and have data that does not overlap the data of another member.
[[nodiscard]] std::vector<zip_member> read_zip(std::span<const std::byte> bytes, const std::string& path);

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
