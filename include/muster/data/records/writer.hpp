// Writers of muster's own format of records: a single file, or a growing folder of files. docs/record-format.md
// describes the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/data/record_schema.hpp>
#include <muster/data/records/manifest.hpp>

namespace muster { inline namespace v0 { namespace data {

namespace detail {
class manifest_file;
struct manifest_content;
}

/// Options of the layout of records in files.
struct record_file_options {
  /// Every record starts at a multiple of `alignment` bytes in the file, a power of two up to 4096, so that a mapped
  /// record can be used in place. 0: 64 if all records have the same size of at least a kibibyte, else 8.
  std::uint32_t alignment = 0;
  /// 0: records are stored uncompressed and are read without a copy. Otherwise records with a total size of about this
  /// many bytes are compressed together with Zstandard (requires muster::zstd). Files are smaller, but reading one
  /// record decompresses its whole block.
  std::size_t block_bytes = 0;
  /// Compression level of Zstandard: 1 is fast, 19 is small.
  int level = 3;
};

/// The result of writing a file.
struct record_file_summary {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;   ///< size of the file
  std::uint64_t digest = 0;  ///< digest of schema and records; does not depend on record_file_options
};

/// Writes one file of records. The complete file exists, flushed to the disk, when commit() returns, and not before. A
/// writer that is killed at any moment leaves no file with this name. The writer holds 4 bytes a record, 4 a label and,
/// unless all records have the same size, 8 a record. Used by one thread.
class record_file_writer {
 public:
  /// Throws configuration_error if the file cannot be written, for a fixed schema with records of 0 bytes, and for
  /// invalid options.
  record_file_writer(std::string path, record_schema schema, const record_file_options& options = {});
  ~record_file_writer();
  record_file_writer(record_file_writer&&) noexcept;
  record_file_writer& operator=(record_file_writer&&) = delete;

  /// Appends a record with a value for each label of the schema. Throws configuration_error for a record whose size
  /// differs from the schema's, another number of labels, or a full disk.
  void append(std::span<const std::byte> record, std::span<const float> labels);

  /// Returns the size in bytes of the records appended so far, before compression.
  [[nodiscard]] std::uint64_t uncompressed_bytes() const noexcept;
  /// Returns the size in bytes of the tables held in memory, which are written after the records.
  [[nodiscard]] std::uint64_t table_bytes() const noexcept;

  /// Completes the file. Throws configuration_error if there are no records, and if the disk is full. Then no file
  /// exists.
  record_file_summary commit();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

/// Adds records to a folder of files with a manifest, which is created if missing. Readers see none of the appended
/// records before commit(), and all appended records after commit(). A writer that is killed at any moment leaves none
/// of its records in the manifest (but perhaps files that no manifest names, which may be deleted). Several writers may
/// add to a folder at once.
class record_set_writer {
 public:
  /// Starts a new file after about `file_bytes` bytes of records before compression. Unless `file_bytes` is the largest
  /// number, a new file is also started when the tables need 16 MiB of memory. Throws data_error if the folder has
  /// records of another schema, and configuration_error if the folder cannot be written.
  record_set_writer(std::string folder, record_schema schema, const record_file_options& options = {},
                    std::uint64_t file_bytes = std::uint64_t{256} << 20);
  ~record_set_writer();
  record_set_writer(record_set_writer&&) noexcept;
  record_set_writer& operator=(record_set_writer&&) = delete;

  /// Resumes the work with this number. Called before the first append(). A killed writer with the same work left
  /// complete files in the folder, which become part of the next commit(). Returns the position that the killed writer
  /// had passed to reached() when it completed the last of these files, or 0 if there are no such files. Until commit()
  /// each complete file is noted in the folder. Files left by other works are removed. If `work` is not set, the work
  /// cannot be resumed, and its files are noted only for their removal. Throws configuration_error while another
  /// process does the same work.
  std::uint64_t resume(std::optional<std::uint64_t> work);
  /// Requires that the records become the only records of the folder. Throws configuration_error if the folder has
  /// records already. commit() throws configuration_error, and adds no records, if another writer has added some.
  void require_alone();
  /// Requires that the folder's records are divided into shards in this way, such as "hash:user 8", or not at all if
  /// the text is empty: the first writer notes the text in the manifest. Throws configuration_error if they are divided
  /// otherwise. commit() throws it, and adds no records, if another writer has divided them meanwhile.
  void require_division(const std::string& rule_and_shards);
  /// Returns true if a killed writer of this work left its notes in the folder, even if it completed no file.
  [[nodiscard]] static bool is_unfinished(const std::string& folder, std::uint64_t work);
  /// Returns the number of records in the files that resume() found.
  [[nodiscard]] std::uint64_t resumed() const noexcept { return resumed_; }
  /// Sets the position up to which the input of the work has been appended. The next append() starts after this
  /// position.
  void reached(std::uint64_t place) noexcept { place_ = place; }

  /// Appends a record as record_file_writer does. Records of a shard are written to files of their own, whose names
  /// begin with "shard-" and the shard's number. The writer has a file open for every shard that was named.
  void append(std::span<const std::byte> record, std::span<const float> labels,
              std::optional<std::uint32_t> shard = std::nullopt);
  /// Ends the current files. Later records are written to new files.
  void next_file();
  /// Adds all records that were appended since the last commit() to the manifest. Records without commit() are lost.
  /// After resume() with a work, the complete files stay for the next writer of that work.
  void commit();
  /// Returns the files of the last commit().
  [[nodiscard]] const std::vector<manifest_entry>& committed() const noexcept { return committed_; }

 private:
  std::string folder_;
  record_schema schema_;
  record_file_options options_;
  std::uint64_t file_bytes_;
  struct open_file {
    std::string name;
    std::optional<record_file_writer> writer;
  };
  void finish(open_file& file);
  void discard() noexcept;
  void require_no_others(const std::vector<manifest_entry>& existing);
  void require_same_division(const detail::manifest_content& existing);
  std::map<std::optional<std::uint32_t>, open_file> open_files_;  // by shard
  std::vector<manifest_entry> pending_;                           // complete files that are not yet in the manifest
  std::vector<manifest_entry> committed_;                         // by the last commit()
  // For a work that can be resumed: the complete files, each with the position up to which its records reach.
  std::unique_ptr<detail::manifest_file> notes_;
  std::uint64_t place_ = 0;
  std::uint64_t resumed_ = 0;
  bool resumable_ = false, alone_ = false;
  std::optional<std::string> division_;
};

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
