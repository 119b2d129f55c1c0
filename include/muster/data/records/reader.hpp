// Readers of muster's own format of records: a single file, or all files of a folder's manifest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/data/record_source.hpp>
#include <muster/data/sources/http.hpp>
#include <muster/data/sources/mapped_file.hpp>  // also so that a program with muster::zstd reads compressed blocks

namespace muster { inline namespace v0 { namespace data {

/// The policy for comparing a record with its checksum when the record is read.
enum class record_checks { every_read, never };

/// Options of reading record files.
struct record_read_options {
  record_checks checks = record_checks::every_read;
  /// For compressed files: size in bytes of the cache of decompressed blocks.
  std::size_t block_cache_bytes = std::size_t{64} << 20;
  /// Number of threads for opening files. 0: as many as this process may use.
  int threads = 0;
  /// For a folder: newest() and version() can open files that are added to the manifest later.
  bool follow = false;
  /// With `follow`: after every N batches of a loader, new files may join the current epoch. 0: new files join at the
  /// next epoch.
  std::uint64_t every = 0;
  /// For a folder: each file is a shard. Up to any position the order of an epoch takes from each shard its proportion,
  /// in the shard's own order. The digest covers the manifest's entries.
  bool shards = false;
  /// With `shards`: files that the manifest lists may be missing. Their records cannot be read by this process. See
  /// available_shards().
  bool local = false;
  /// With `shards`: the value of held_shards::weight.
  std::uint64_t weight = 1;
  /// For a folder on a server: options of the local copies of its files.
  http_options http{};
};

/// A file of an open record_files.
struct record_file_info {
  std::string path;
  sample_id first = 0;  ///< id of the first record
  std::uint64_t records = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t payload_bytes = 0;  ///< size of the records as stored in the file
  std::uint64_t blocks = 0;         ///< number of compressed blocks; 0 if records are stored uncompressed
  std::uint32_t alignment = 0;
};

/// Records in muster's own format. A mapped_record_source that is mapped() unless blocks are compressed or the files
/// are on a server.
///
/// The set of files is fixed at opening. Files that are added to the manifest later are visible to readers that open
/// the folder later. Opening reads and checks footers and tables (4 bytes a record, 4 a label, and 8 a record unless
/// all records have the same size). Records are read, and compared with their checksums, only on request. A record that
/// does not match its checksum is a bad record. The digest covers the schema and the records' checksums, in
/// order. The same records have the same digest in any number of files, compressed or not.
class record_files : public detail::source_with_facts {
 public:
  /// Opens a file or a folder with a manifest. The path may be the address of a file or folder on a server
  /// (https://SERVER/FOLDER, http://, s3://BUCKET/FOLDER). Then records are fetched when they are read, see
  /// http_options. Throws data_error with the byte, or the manifest's line, at which the error was detected: a
  /// truncated file, damaged tables, or a file that does not match the manifest. Throws configuration_error for
  /// compressed blocks in a program without muster::zstd, and for an address in a program without muster::http.
  explicit record_files(const std::string& path, const record_read_options& options = {});

  /// The functions of mapped_record_source.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  /// Returns the number of neighbouring records that fill about 4 MiB, for a folder on a server, and 0 for other
  /// sources.
  [[nodiscard]] std::uint64_t block_records() const noexcept;
  /// Announces that these records will be read soon. For a folder on a server the records are fetched in the
  /// background.
  void expect(std::span<const sample_id> ids) const;
  /// Returns the files that this process can read, with `shards`. Otherwise names no shards.
  [[nodiscard]] held_shards available_shards() const;
  /// Returns the order of the files in an epoch, with `shards`.
  [[nodiscard]] const std::shared_ptr<const detail::proportions>& mixture_order() const noexcept;
  /// Returns the value of record_read_options::every. See any_record_source.
  [[nodiscard]] std::uint64_t follows_every() const noexcept;
  /// Returns the current number of records in the manifest of a followed folder. Returns 0 if the folder is not
  /// followed. Throws data_error.
  [[nodiscard]] std::uint64_t newest() const;
  /// Returns the first files of the folder, which have `records` records together. Files that are already open are not
  /// opened again. Waits up to ten seconds until the manifest has the files, because a network file system may show
  /// changes by another host late. Throws data_error after this time.
  [[nodiscard]] record_files version(std::uint64_t records) const;
  /// Returns the statistics that keep_statistics() put into the manifest, for all or the first records.
  [[nodiscard]] std::optional<source_statistics> known_statistics() const;
  [[nodiscard]] bool mapped() const noexcept;
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const;

  /// Returns the files that this process can read, in the order of their records.
  [[nodiscard]] std::vector<record_file_info> files() const;

 private:
  struct state;
  explicit record_files(std::shared_ptr<const state> opened) noexcept;
  std::shared_ptr<const state> state_;
};
static_assert(mapped_record_source<record_files>);

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
