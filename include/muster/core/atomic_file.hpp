// Files that are written completely or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 {

/// Returns the folder for temporary files: TMPDIR, or /tmp. Throws configuration_error if the folder does not exist.
[[nodiscard]] std::string temporary_folder();

/// Throws configuration_error when `write_atomically` to `path` cannot succeed: the folder is missing, permission is
/// denied, or `path` is a folder. For programs that write their result after hours of work and must detect the problem
/// early. Leaves no file behind. A path that is writable now may become unwritable later.
void require_writable(const std::string& path);

/// Replaces the content of the file by `text`. Readers see the old or the new content, never a part: the text is
/// written to a new file in the same folder, flushed to the disk, and renamed. A device or pipe such as /dev/stdout is
/// written directly. Throws configuration_error when writing fails, and then leaves the file unchanged.
void write_atomically(const std::string& path, std::string_view text);

/// A file of any size that is written in pieces and that readers see completely or not at all. The bytes are written to
/// a new file in the folder of `path`. commit() flushes the bytes to the disk, renames the file and flushes the folder.
/// A writer that ends earlier, by an exception or by SIGKILL at any moment, leaves `path` unchanged. The new file has
/// no name before commit(), so that a killed process leaves no file behind. On file systems without such files (NFS)
/// its name is "path.PID-N.tmp", and remove_abandoned_files() removes the files of killed processes. Not thread safe.
class atomic_file {
 public:
  /// Creates the new file with the permissions `mode`, restricted by the umask. Throws configuration_error when the
  /// file cannot be created.
  explicit atomic_file(std::string path, unsigned mode = 0666);
  atomic_file(atomic_file&& other) = default;
  atomic_file& operator=(atomic_file&&) = delete;
  ~atomic_file();

  /// Appends bytes. Throws configuration_error when writing fails (a full disk). After a failure the object may only be
  /// destroyed.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Returns the number of bytes written so far.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// Flushes the bytes written so far to the disk, so that commit() has less to flush. Throws configuration_error like
  /// write().
  void flush_to_disk();
  /// Renames the new file to `path`. Throws configuration_error, and leaves `path` unchanged, when that fails.
  void commit();

 private:
  struct closed {
    void operator()(std::FILE* file) const noexcept { (void)std::fclose(file); }
  };
  // Unless `is_done`, removes the new file and throws configuration_error with the text of errno.
  void require(bool is_done);

  void choose_name();

  std::string path_;
  std::string name_;                         // name of the new file, if it has one
  std::unique_ptr<char[]> buffer_;           // the buffer of file_
  std::unique_ptr<std::FILE, closed> file_;  // null after commit()
  std::uint64_t size_ = 0;
};

namespace detail {

/// Writes the buffered text of the standard output. Throws configuration_error if that fails, or if an earlier write to
/// the standard output has failed.
void flush_standard_output();

/// Removes the files that atomic_file left in a folder when its process was killed, for the file name `name`, or for
/// any name. The file of a living writer on any host remains, because the writer holds a lock on the file.
void remove_abandoned_files(const std::string& folder, std::string_view name = {}) noexcept;

/// Flushes the folder of `path`, so that the creation or the rename of the file survives a crash of the machine. Does
/// nothing where the file system does not support this.
void flush_folder(const std::string& path) noexcept;

}  // namespace detail

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
