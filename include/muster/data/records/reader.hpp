// Reading muster's own format of records: one file, or all files of a folder's manifest.
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

namespace muster { inline namespace v0 {

/// Whether reading a record compares it with its checksum.
enum class record_checks { every_read, never };

/// How record files are read.
struct record_read_options {
  record_checks checks = record_checks::every_read;
  /// Of compressed files: so many bytes of decompressed blocks are kept for the next reads.
  std::size_t block_cache_bytes = std::size_t{64} << 20;
  /// Threads to open files with; 0 means as many as this process may use.
  int threads = 0;
  /// Of a folder: files that enter the manifest later can be opened by newest() and version().
  bool follow = false;
  /// With `follow`: so many batches of a loader apart they may join the epoch that it is in; 0: from the next epoch on.
  std::uint64_t every = 0;
  /// Of a folder: each file is a shard. The order of an epoch takes of each its proportion, up to any position, in an
  /// order of its own; the digest is of the manifest's entries.
  bool shards = false;
  /// With `shards`: files that the manifest lists may be missing. Their records cannot be read here; see held().
  bool local = false;
  /// With `shards`: as held_shards has it.
  std::uint64_t weight = 1;
  /// Of a folder on a server: how its files are kept at hand.
  http_options http{};
};

/// One file of an open record_files.
struct record_file_info {
  std::string path;
  sample_id first = 0;  ///< the id of its first record
  std::uint64_t records = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t payload_bytes = 0;  ///< of records, as they are in the file
  std::uint64_t blocks = 0;         ///< compressed ones; 0 when records lie as they are
  std::uint32_t alignment = 0;
};

/// Records of muster's own format; a mapped_record_source, mapped() unless blocks are compressed.
///
/// What is in the files when they are opened stays: files that enter the manifest later are seen by readers that open
/// it later. Opening reads footers and tables and checks them (4 bytes a record, 4 a label, and 8 a record unless
/// records have one size); records are read, and compared with their checksums, only when they are asked for. A record
/// that does not match its checksum is a bad record. The digest is of the schema and of all records' checksums, in
/// order: the same records have the same digest in however many files they lie, compressed or not.
class record_files : public detail::source_with_facts {
 public:
  /// Opens a file or a folder with a manifest, which may be the address of one on a server (https://SERVER/FOLDER,
  /// http://, s3://BUCKET/FOLDER): records are fetched when they are wanted, see http_options. Throws data_error with
  /// the byte, or the manifest's line, at which something is wrong: a file that is cut short, that has damaged tables,
  /// or that is not the one that the manifest means; configuration_error for compressed blocks in a program without
  /// muster::zstd, and for an address in one without muster::http.
  explicit record_files(const std::string& path, const record_read_options& options = {});

  /// As mapped_record_source has them.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  /// Of a folder on a server: how many neighbours make about 4 MiB. 0 for others.
  [[nodiscard]] std::uint64_t block_records() const noexcept;
  /// Of the same: these records will be wanted, and come meanwhile.
  void expect(std::span<const sample_id> ids) const;
  /// With `shards`: which files are here. Otherwise nothing.
  [[nodiscard]] held_shards held() const;
  /// With `shards`: the order of the files in an epoch.
  [[nodiscard]] const std::shared_ptr<const detail::proportions>& mixture_order() const noexcept;
  /// As any_record_source has it.
  [[nodiscard]] std::uint64_t follows_every() const noexcept;
  /// Records that the manifest of a folder that is followed has now; 0: it is not followed. Throws data_error.
  [[nodiscard]] std::uint64_t newest() const;
  /// The first files of the folder, which have so many records together. Files that are open stay so. Waits up to ten
  /// seconds for the manifest to have them, which a file system of another host may show late; throws data_error then.
  [[nodiscard]] record_files version(std::uint64_t records) const;
  /// Those that keep_statistics() put into the manifest, of all or the first of the records.
  [[nodiscard]] std::optional<source_statistics> known_statistics() const;
  [[nodiscard]] bool mapped() const noexcept;
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const;

  /// The files that are here, in the order of their records.
  [[nodiscard]] std::vector<record_file_info> files() const;

 private:
  struct state;
  explicit record_files(std::shared_ptr<const state> opened) noexcept;
  std::shared_ptr<const state> state_;
};
static_assert(mapped_record_source<record_files>);

}}  // namespace muster::v0
