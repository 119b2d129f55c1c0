// A whole file as bytes, plain or compressed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::inline v0 {

namespace detail {

/// Makes compressed bytes plain; `path` is for its data_error.
using text_decoder = std::vector<char> (*)(std::string_view compressed, const std::string& path);

/// Sets what reads gzip, null for nothing, and returns what did before. Thread safe.
text_decoder set_gzip_decoder(text_decoder decoder) noexcept;
/// The same for Zstandard.
text_decoder set_zstd_decoder(text_decoder decoder) noexcept;

/// Makes gzip known, and returns true; defined in muster::zlib.
bool register_zlib() noexcept;
/// Makes Zstandard known, for files and for the blocks of records, and returns true; defined in muster::zstd.
bool register_zstd() noexcept;

#ifdef MUSTER_HAS_ZLIB
// A target that links muster::zlib gets this definition, so that the variable takes the object file out of the static
// archive and the decoder is there before main() starts.
inline const bool zlib_is_registered = register_zlib();
#endif
#ifdef MUSTER_HAS_ZSTD
inline const bool zstd_is_registered = register_zstd();
#endif

}  // namespace detail

/// Whether a file that begins as gzip or Zstandard data do is decompressed, or taken as it is.
enum class compressed_files { decoded, as_they_are };

/// The bytes of a file. A plain file is mapped into memory and costs nothing until it is read; a pipe is read to its
/// end; a compressed file, known by its first bytes and not by its name, is decompressed when muster was built with
/// zlib (gzip) or libzstd (Zstandard).
///
/// The file must not be shortened while it is mapped: reading what is gone ends the process (SIGBUS).
class mapped_file {
 public:
  /// Throws data_error for a path that is missing, a directory, empty, not readable or not properly compressed.
  explicit mapped_file(const std::string& path, compressed_files how = compressed_files::decoded);

  /// Bytes that are in memory already, for readers that had to change what the file has.
  explicit mapped_file(std::vector<char> bytes) noexcept : read_(std::move(bytes)) {}

  /// All of it; never empty when it is a file. Valid as long as this object.
  [[nodiscard]] std::string_view text() const noexcept {
    return mapped_ ? std::string_view(mapped_.get(), mapped_.get_deleter().size)
                   : std::string_view(read_.data(), read_.size());
  }
  /// The same, for formats that are no text.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return std::as_bytes(std::span(text())); }

 private:
  struct unmap {
    std::size_t size;
    void operator()(const char* memory) const noexcept;
  };

  std::unique_ptr<const char, unmap> mapped_;
  std::vector<char> read_;
};

}  // namespace muster::inline v0
