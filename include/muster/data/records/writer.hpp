// Writing muster's own format of records: one file, or a growing folder of them. docs/record-format.md has the bytes.
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

namespace muster { inline namespace v0 {

namespace detail {
class manifest_file;
}

/// How records are laid into files.
struct record_file_options {
  /// Every record starts at a multiple of so many bytes of the file, a power of two up to 4096, so that a mapped record
  /// can be used in place. 0: 64 for records of one size of a kibibyte or more, else 8.
  std::uint32_t alignment = 0;
  /// 0: records lie as they are, and are read without a copy. Otherwise records of about so many bytes in total are
  /// compressed together with Zstandard (needs muster::zstd): smaller files, and reading one record decompresses its
  /// block.
  std::size_t block_bytes = 0;
  /// Of Zstandard: 1 fast, 19 small.
  int level = 3;
};

/// What became of a file.
struct record_file_summary {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;   ///< of the file
  std::uint64_t digest = 0;  ///< of schema and records; does not depend on record_file_options
};

/// Writes one file of records. The file is there, whole and flushed to the disk, when commit() returns, and not before:
/// a writer that is killed at any moment leaves no file of this name. Holds 4 bytes a record, 4 a label and, unless
/// records have one size, 8 a record. Used by one thread.
class record_file_writer {
 public:
  /// Throws configuration_error when the file cannot be written, for a fixed schema without bytes, and for options that
  /// cannot be.
  record_file_writer(std::string path, record_schema schema, const record_file_options& options = {});
  ~record_file_writer();
  record_file_writer(record_file_writer&&) noexcept;
  record_file_writer& operator=(record_file_writer&&) = delete;

  /// Appends a record with one label for each of the schema's. Throws configuration_error for a record of another size
  /// than the schema's, another number of labels, or a full disk.
  void append(std::span<const std::byte> record, std::span<const float> labels);

  /// Bytes of records appended so far, before compression.
  [[nodiscard]] std::uint64_t bytes() const noexcept;
  /// Bytes of memory that are held for the tables behind them.
  [[nodiscard]] std::uint64_t table_bytes() const noexcept;

  /// Ends the file. Throws configuration_error without records, and when the disk is full: then there is no file.
  record_file_summary commit();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

/// Adds records to a folder of files with a manifest, which it makes if there is none. Readers see nothing of what is
/// appended before commit(), and all of it afterwards: a writer that is killed at any moment leaves no part of it in
/// the manifest (but perhaps files that no manifest names, which may be deleted). Several writers may add to one folder
/// at once.
class record_set_writer {
 public:
  /// A new file is begun after about `file_bytes` bytes of records, and unless that is the largest number also when
  /// their tables take 16 MiB of memory. Throws data_error when the folder has records of another schema, and
  /// configuration_error when it cannot be written.
  record_set_writer(std::string folder, record_schema schema, const record_file_options& options = {},
                    std::uint64_t file_bytes = std::uint64_t{256} << 20);
  ~record_set_writer();
  record_set_writer(record_set_writer&&) noexcept;
  record_set_writer& operator=(record_set_writer&&) = delete;

  /// Before the first append(): goes on with the work of this number, of which a writer that was killed left whole
  /// files here; they become part of the next commit(). Returns how far they reach, as that writer's reached() said; 0:
  /// there are none. From now on each file is noted in the folder when it is whole, until commit(); what other works
  /// left is removed. Nothing: the work cannot be gone on with, and its files are noted only so that they are removed.
  /// Throws configuration_error while another process does the same work.
  std::uint64_t resume(std::optional<std::uint64_t> work);
  /// From now on the records are to be the only ones of the folder: commit() adds none where another writer has added
  /// some, and throws configuration_error, as this does where there are some already.
  void require_alone();
  /// Whether resume(work) would find any there.
  [[nodiscard]] static bool is_unfinished(const std::string& folder, std::uint64_t work);
  /// Records in the files that resume() found.
  [[nodiscard]] std::uint64_t resumed() const noexcept { return resumed_; }
  /// How much of the work has become records by now: the next append() begins behind it.
  void reached(std::uint64_t place) noexcept { place_ = place; }

  /// As of record_file_writer. Records of a shard go into files of its own; their names begin with "shard-" and its
  /// number; those of all shards that were named are being written at a time.
  void append(std::span<const std::byte> record, std::span<const float> labels,
              std::optional<std::uint32_t> shard = std::nullopt);
  /// What follows goes into other files.
  void next_file();
  /// Puts all that was appended since the last commit() into the manifest. Without it, that is lost, unless resume()
  /// began it.
  void commit();
  /// The files of the last commit().
  [[nodiscard]] const std::vector<manifest_entry>& committed() const noexcept { return committed_; }

 private:
  std::string folder_;
  record_schema schema_;
  record_file_options options_;
  std::uint64_t file_bytes_;
  struct begun_file {
    std::string name;
    std::optional<record_file_writer> writer;
  };
  void finish(begun_file& file);
  void forget() noexcept;
  void require_no_others(const std::vector<manifest_entry>& there);
  std::map<std::optional<std::uint32_t>, begun_file> begun_;  // by shard
  std::vector<manifest_entry> pending_;                       // files that are whole, and not yet in the manifest
  std::vector<manifest_entry> committed_;                     // by the last commit()
  std::unique_ptr<detail::manifest_file>
      notes_;  // of the work that is to be resumed, each file with how far it reaches
  std::uint64_t place_ = 0;
  std::uint64_t resumed_ = 0;
  bool resumable_ = false, alone_ = false;
};

}}  // namespace muster::v0
