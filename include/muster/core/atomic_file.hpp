// Files that are there whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 {

/// The folder for temporary files: TMPDIR, or /tmp. Throws configuration_error if there is no such folder.
[[nodiscard]] std::string temporary_folder();

/// Throws configuration_error when `write_atomically` to `path` cannot succeed: no such folder, no permission, a
/// folder in its place. For programs that write their result after hours of work and should say so before. Leaves
/// nothing behind; a path that may be written now can of course be lost later.
void require_writable(const std::string& path);

/// Makes `text` the content of the file, which readers see as it was before or as it is after, never in between: the
/// text is written to a new file beside it, flushed to the disk, and renamed. A device or pipe such as /dev/stdout is
/// written to directly. Throws configuration_error when that fails, and then leaves the file as it was.
void write_atomically(const std::string& path, std::string_view text);

/// A file written piece by piece, of any size, that readers see whole or not at all: the bytes go to a new file beside
/// `path`, and commit() flushes them to the disk, renames the file and makes the folder remember. A writer that ends
/// before that, by an exception or by SIGKILL at any moment, leaves `path` as it was. The new file has no name before
/// commit(), so that a killed process leaves nothing of it; where the file system has no such files (NFS) its name is
/// "path.PID-N.tmp", and remove_abandoned_files() removes what killed processes left. Used by one thread.
class atomic_file {
 public:
  /// `mode`: its permissions, less what the umask takes. Throws configuration_error when the file cannot be made.
  explicit atomic_file(std::string path, unsigned mode = 0666);
  atomic_file(atomic_file&& other) = default;
  atomic_file& operator=(atomic_file&&) = delete;
  ~atomic_file();

  /// Appends. Throws configuration_error when that fails (a full disk): the file is then only good for destruction.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Bytes written so far.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// Has what was written so far on the disk, so that commit() has less to wait for. Throws configuration_error as
  /// write() does.
  void flush_to_disk();
  /// Makes it the file at `path`. Throws configuration_error, and leaves `path` as it was, when that fails.
  void commit();

 private:
  struct closed {
    void operator()(std::FILE* file) const noexcept { (void)std::fclose(file); }
  };
  void require(bool is_done);

  void choose_name();

  std::string path_;
  std::string name_;                         // of the new file, if it has one
  std::unique_ptr<char[]> buffer_;           // of file_
  std::unique_ptr<std::FILE, closed> file_;  // null once it is committed
  std::uint64_t size_ = 0;
};

namespace detail {

/// Removes what atomic_file left in a folder when its process was killed, for files of the name `of`, or of any. A file
/// whose writer lives, on whatever host, stays: the writer has it locked.
void remove_abandoned_files(const std::string& folder, std::string_view of = {}) noexcept;

/// Makes the folder of `path` remember, across a crash of the machine, that the file was made or renamed. Does nothing
/// where the file system cannot.
void flush_folder(const std::string& path) noexcept;

}  // namespace detail

}}  // namespace muster::v0
