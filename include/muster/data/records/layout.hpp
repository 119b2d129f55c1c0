// The file format of records, as specified in docs/record-format.md. Private to the reader and the writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <muster/data/record_schema.hpp>
#include <muster/data/sources/mapped_file.hpp>

#include <muster/core/round_up.hpp>
#include <muster/data/records/remote_folder.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail::records {

// Magic numbers at the start and the end of a file: a byte that does not occur in text, a name, and line ends that a
// text-mode transfer would change.
inline constexpr char header_magic[9] = "\x8dMUSTR\r\n";
inline constexpr char footer_magic[9] =
    "\x8d"
    "ENDMR\r\n";
inline constexpr std::uint32_t format_version = 1;
inline constexpr std::uint64_t page = 4096;                              // alignment of the first record
inline constexpr std::uint64_t table_alignment = 64;                     // alignment of the tables
inline constexpr std::uint64_t most_raw_bytes = std::uint64_t{1} << 30;  // maximum size of a decompressed block
inline constexpr std::uint32_t zstd_blocks = 1;                          // a flag in the header

/// The header of a file. The schema follows: `schema_bytes` bytes of JSON.
struct file_header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t flags;
  std::uint32_t alignment;  // alignment of every record, a power of two up to a page
  std::uint32_t schema_bytes;
  std::uint32_t reserved;
  std::uint32_t crc;  // checksum of the header, with 0 in this field, and the schema
};
static_assert(sizeof(file_header) == 32);

/// The footer of a file.
struct file_footer {
  std::uint64_t records;
  std::uint64_t payload_offset;
  std::uint64_t payload_bytes;
  std::uint64_t blocks;
  std::uint64_t digest;      // digest of the schema and the records' checksums
  std::uint64_t file_bytes;  // including the footer
  std::uint32_t tables_crc;  // checksum of the bytes from the labels to the footer
  std::uint32_t crc;         // checksum of the preceding fields
  char magic[8];
};
static_assert(sizeof(file_footer) == 64);

/// A block of compressed records.
struct block_entry {
  std::uint64_t first_record;
  std::uint64_t end;  // in the payload; the block begins at the end of the previous block
  std::uint64_t raw_bytes;
};
static_assert(sizeof(block_entry) == 24);

/// The offsets of the tables in a file. All tables are after the payload.
struct table_places {
  std::uint64_t labels;
  std::uint64_t crcs;
  std::uint64_t ends;
  std::uint64_t blocks;
  std::uint64_t footer;
};

/// Returns the offsets of the tables. Throws data_error naming `path` if the sizes in the footer are inconsistent.
[[nodiscard]] table_places place_tables(const file_footer& footer, const record_schema& schema,
                                        const std::string& path);

/// A file, mapped or on a server. Everything except the records themselves has been checked.
struct shard {
  std::string path;
  mapped_file file;                       // empty if the file is on a server
  std::shared_ptr<remote_folder> remote;  // null for a local file
  std::size_t number;                     // number of the file in `remote`
  record_schema schema;
  file_header header;
  file_footer footer;
  std::uint64_t record_bytes;          // 0 unless the schema is fixed
  std::uint64_t stride;                // distance from one record to the next, for a fixed schema
  std::span<const std::byte> payload;  // payload of a local file
  const float* labels;                 // labels of all records
  const std::uint32_t* crcs;           // checksums of all records
  const std::uint64_t* ends;  // ends of all records in the payload or in their block; null if the schema is fixed
  std::span<const block_entry> blocks;  // empty if the file is not compressed

  /// Checks header, footer and tables. Throws data_error with the byte at which the error was detected.
  explicit shard(const std::string& path);
  /// Opens a file of `size` bytes on a server. Also throws the errors of fetching it.
  shard(const std::string& path, std::shared_ptr<remote_folder> folder, std::size_t file_number, std::uint64_t size);

  [[nodiscard]] bool compressed() const noexcept { return (header.flags & zstd_blocks) != 0; }
  /// The location of a record: in the payload or, if the file is compressed, in the decompressed block.
  /// `first_of_block` is the first record of the block, and 0 for a file that is not compressed.
  struct range {
    std::uint64_t begin;
    std::uint64_t size;
  };
  [[nodiscard]] range place(std::uint64_t record, std::uint64_t first_of_block) const noexcept {
    if (ends == nullptr) return {(record - first_of_block) * stride, record_bytes};
    const std::uint64_t begin =
        record == first_of_block ? 0 : muster::detail::round_up(ends[record - 1], header.alignment);
    return {begin, ends[record] - begin};
  }
  [[nodiscard]] std::size_t block_of(std::uint64_t record) const noexcept;
  /// Returns the location of the record's bytes in the payload, or of its block if the file is compressed.
  [[nodiscard]] range place_in_payload(std::uint64_t record) const noexcept {
    if (!compressed()) return place(record, 0);
    const std::size_t block = block_of(record);
    const std::uint64_t begin = block == 0 ? 0 : blocks[block - 1].end;
    return {begin, blocks[block].end - begin};
  }
  /// Returns bytes of the payload, which are valid as long as this object and `held`. Waits for the bytes if they are
  /// on a server.
  [[nodiscard]] std::span<const std::byte> bytes(std::uint64_t begin, std::uint64_t size,
                                                 remote_folder::bytes& held) const;
  /// Returns the checksum that a record with these bytes must have.
  [[nodiscard]] std::uint32_t crc_of(std::uint64_t record, std::span<const std::byte> bytes) const noexcept;

 private:
  void open(std::uint64_t size);
  [[nodiscard]] std::span<const std::byte> part(std::uint64_t begin, std::uint64_t size);
  void check_blocks() const;
  void check_records(std::uint64_t first, std::uint64_t end, std::uint64_t raw_bytes) const;
  [[noreturn]] void refuse(std::uint64_t offset, const std::string& problem) const;

  std::vector<remote_folder::bytes> held_;  // parts of a file on a server
};

[[nodiscard]] std::string schema_to_json(const record_schema& schema);
/// Throws data_error for invalid text, naming `path` and byte `offset`, at which the text begins.
[[nodiscard]] record_schema schema_from_json(std::string_view text, const std::string& path, std::uint64_t offset);

/// Returns the contribution of a record at `index` to the digest of a dataset. The digest is a function of the sum of
/// the contributions, so that it depends only on the records and their order, and not on the division into files.
[[nodiscard]] std::uint64_t digest_term(std::uint64_t index, std::uint32_t crc) noexcept;
/// Returns the digest for a sum of contributions.
[[nodiscard]] std::uint64_t digest_of(std::uint64_t sum, std::uint64_t records, const record_schema& schema);

/// The functions for compressing and decompressing a block. Defined in muster::zstd.
struct block_codec {
  /// Returns the compressed bytes, at `level` of Zstandard.
  std::vector<std::byte> (*compress)(std::span<const std::byte> raw, int level);
  /// Fills `raw`. Returns false if the bytes are not a block of exactly the size of `raw`.
  bool (*decompress)(std::span<const std::byte> compressed, std::span<std::byte> raw) noexcept;
};

/// Sets the functions for blocks. Thread safe.
void set_block_codec(const block_codec* codec) noexcept;
/// Returns the functions for blocks. Throws configuration_error if the program was linked without muster::zstd.
[[nodiscard]] const block_codec& require_block_codec(const std::string& path);

/// Throws configuration_error on a big-endian machine.
void require_little_endian(const std::string& path);

}}}}  // namespace muster::v0::data::detail::records

#include <muster/data/records/detail/layout-inl.hpp>
