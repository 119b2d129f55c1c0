// The bytes of a file of records, as docs/record-format.md specifies them; private to the reader and the writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <muster/data/record_schema.hpp>
#include <muster/data/sources/mapped_file.hpp>

#include "../../core/round_up.hpp"
#include "far_folder.hpp"

namespace muster { inline namespace v0 { namespace detail::records {

// How files begin and end: a byte that no text has, a name, and line ends that a transfer as text would change.
inline constexpr char header_magic[9] = "\x8dMUSTR\r\n";
inline constexpr char footer_magic[9] =
    "\x8d"
    "ENDMR\r\n";
inline constexpr std::uint32_t format_version = 1;
inline constexpr std::uint64_t page = 4096;           // where the first record begins: a multiple of this
inline constexpr std::uint64_t table_alignment = 64;  // and the tables of this
inline constexpr std::uint64_t most_raw_bytes = std::uint64_t{1} << 30;  // of a block
inline constexpr std::uint32_t zstd_blocks = 1;                          // a flag of the header

/// What a file begins with; the schema, `schema_bytes` of JSON, follows.
struct file_header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t flags;
  std::uint32_t alignment;  // of every record, a power of two up to a page
  std::uint32_t schema_bytes;
  std::uint32_t reserved;
  std::uint32_t crc;  // of all of the above and the schema
};
static_assert(sizeof(file_header) == 32);

/// What a file ends with.
struct file_footer {
  std::uint64_t records;
  std::uint64_t payload_offset;
  std::uint64_t payload_bytes;
  std::uint64_t blocks;
  std::uint64_t digest;      // of the schema and the records' checksums
  std::uint64_t file_bytes;  // with the footer
  std::uint32_t tables_crc;  // of all bytes between payload and footer
  std::uint32_t crc;         // of all of the above
  char magic[8];
};
static_assert(sizeof(file_footer) == 64);

/// One block of compressed records.
struct block_entry {
  std::uint64_t first_record;
  std::uint64_t end;  // in the payload; it begins where the one before ends
  std::uint64_t raw_bytes;
};
static_assert(sizeof(block_entry) == 24);

/// Where the tables of a file lie, all behind the payload.
struct table_places {
  std::uint64_t labels;
  std::uint64_t crcs;
  std::uint64_t ends;
  std::uint64_t blocks;
  std::uint64_t footer;
};

/// Throws data_error naming `path` when the numbers of the footer are too large for any file.
[[nodiscard]] table_places place_tables(const file_footer& footer, const record_schema& schema,
                                        const std::string& path);

/// One file, mapped or on a server, and checked but for the records themselves.
struct shard {
  std::string path;
  mapped_file file;                 // empty where it is on a server
  std::shared_ptr<far_folder> far;  // null for a local one
  std::size_t number;               // there
  record_schema schema;
  file_header header;
  file_footer footer;
  std::uint64_t record_bytes;  // 0 unless fixed
  std::uint64_t stride;
  std::span<const std::byte> payload;  // of a local one
  const float* labels;
  const std::uint32_t* crcs;
  const std::uint64_t* ends;  // null when fixed
  std::span<const block_entry> blocks;

  /// Checks header, footer and tables. Throws data_error with the byte at which something is wrong.
  explicit shard(const std::string& path);
  /// The same of a file on a server, of so many bytes; throws what fetching it throws, too.
  shard(const std::string& path, std::shared_ptr<far_folder> folder, std::size_t number, std::uint64_t size);

  [[nodiscard]] bool compressed() const noexcept { return (header.flags & zstd_blocks) != 0; }
  /// Where a record is: in the payload or, when compressed, in its block once that is decompressed.
  struct range {
    std::uint64_t begin;
    std::uint64_t size;
  };
  [[nodiscard]] range place(std::uint64_t record, std::uint64_t first_of_block) const noexcept {
    if (ends == nullptr) return {(record - first_of_block) * stride, record_bytes};
    const std::uint64_t begin = record == first_of_block ? 0 : round_up(ends[record - 1], header.alignment);
    return {begin, ends[record] - begin};
  }
  [[nodiscard]] std::size_t block_of(std::uint64_t record) const noexcept;
  /// Where its bytes are in the payload: those of its block, when compressed.
  [[nodiscard]] range place_in_payload(std::uint64_t record) const noexcept {
    if (!compressed()) return place(record, 0);
    const std::size_t block = block_of(record);
    const std::uint64_t begin = block == 0 ? 0 : blocks[block - 1].end;
    return {begin, blocks[block].end - begin};
  }
  /// Bytes of the payload, which stay as long as this and `held`. Waits for them where they are on a server.
  [[nodiscard]] std::span<const std::byte> bytes(std::uint64_t begin, std::uint64_t size,
                                                 far_folder::bytes& held) const;
  /// The checksum that a record with these bytes should have.
  [[nodiscard]] std::uint32_t crc_of(std::uint64_t record, std::span<const std::byte> bytes) const noexcept;

 private:
  void open(std::uint64_t size);
  [[nodiscard]] std::span<const std::byte> part(std::uint64_t begin, std::uint64_t size);
  void check_blocks() const;
  void check_records(std::uint64_t first, std::uint64_t behind, std::uint64_t raw_bytes) const;
  [[noreturn]] void refuse(std::uint64_t offset, const std::string& problem) const;

  std::vector<far_folder::bytes> held_;  // parts of a file on a server
};

[[nodiscard]] std::string schema_to_json(const record_schema& schema);
/// Throws data_error for text that is none.
[[nodiscard]] record_schema schema_from_json(std::string_view text, const std::string& path, std::uint64_t offset);

/// What a record at `index` of a dataset adds to the digest of it: a sum, so that the digest depends on the records and
/// their order alone, and not on the files that they lie in.
[[nodiscard]] std::uint64_t digest_term(std::uint64_t index, std::uint32_t crc) noexcept;
/// The digest of a sum of terms.
[[nodiscard]] std::uint64_t digest_of(std::uint64_t sum, std::uint64_t records, const record_schema& schema);

/// Compresses or decompresses a block; defined in muster::zstd.
struct block_codec {
  /// The compressed bytes, at `level` of Zstandard.
  std::vector<std::byte> (*compress)(std::span<const std::byte> raw, int level);
  /// Fills `raw`; false when the bytes are not a block of exactly this size.
  bool (*decompress)(std::span<const std::byte> compressed, std::span<std::byte> raw) noexcept;
};

/// Makes blocks known. Thread safe.
void set_block_codec(const block_codec* codec) noexcept;
/// Throws configuration_error when the program was linked without muster::zstd.
[[nodiscard]] const block_codec& require_block_codec(const std::string& path);

/// Throws configuration_error on a machine of the other byte order.
void require_little_endian(const std::string& path);

}}}  // namespace muster::v0::detail::records
