// A whole file as bytes, plain or compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/core/hash.hpp>
#include <muster/data/sources/http.hpp>

namespace muster { inline namespace v0 {

namespace detail {

/// Takes plain bytes, piece after piece.
using text_sink = std::function<void(std::span<const char> plain)>;
/// Makes compressed bytes plain; `path` is for its data_error.
using text_decoder = void (*)(std::string_view compressed, const std::string& path, const text_sink& sink);
/// Decoders hand on pieces of at most so many bytes.
inline constexpr std::size_t decoded_piece_bytes = std::size_t{1} << 18;

/// Text of up to so many bytes is held in memory, with what is parsed of it; what is larger is parsed as it is read,
/// and when it was compressed lies in a temporary file. A constant, and not a part of this machine's memory: the order
/// of samples depends on it.
inline constexpr std::size_t most_text_in_memory = std::size_t{64} << 20;

/// What is held of text that is parsed as it is read.
struct text_limits {
  /// Of text in a block, which is parsed at once.
  std::size_t piece_bytes = std::size_t{128} << 10;
  /// Of parsed blocks: more than the 48 MiB that a window of block_window order has.
  std::size_t cache_bytes = std::size_t{64} << 20;
};

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
[[maybe_unused]] static const bool zlib_is_registered = register_zlib();
#endif
#ifdef MUSTER_HAS_ZSTD
[[maybe_unused]] static const bool zstd_is_registered = register_zstd();
#endif

}  // namespace detail

namespace detail {

/// A digest of the states of several things, nothing where one of them has none; state(each) gives it.
template <class Things, class State>
[[nodiscard]] std::optional<std::uint64_t> states_of(const Things& things, const State& state) {
  digest all;
  for (const auto& each : things) {
    const std::optional<std::uint64_t> found = state(each);
    if (!found) return std::nullopt;
    all.add(*found);
  }
  return all.value();
}

}  // namespace detail

/// Whether a file that begins as gzip or Zstandard data do is decompressed, or taken as it is.
enum class compressed_files { decoded, as_they_are };

/// The bytes of a file. A plain file is mapped into memory and costs nothing until it is read; a pipe is read to its
/// end; a compressed file, known by its first bytes and not by its name, is decompressed when muster was built with
/// zlib (gzip) or libzstd (Zstandard), into memory up to 64 MiB, else into a file of the folder for temporary ones that
/// has no name and goes away with this object.
///
/// An address (see http_options) is fetched as a whole into the cache of the host, where it is mapped like a plain
/// file.
///
/// The file must not be shortened while it is mapped: reading what is gone ends the process (SIGBUS).
class mapped_file {
 public:
  /// Throws data_error for a path that is missing, a directory, empty, not readable or not properly compressed, and
  /// configuration_error where the folder for temporary files has no room for a large one.
  explicit mapped_file(const std::string& path, compressed_files how = compressed_files::decoded,
                       const http_options& http = {});

  /// Bytes that are in memory already, for readers that had to change what `of` has, if they are of a file.
  explicit mapped_file(std::vector<char> bytes, const mapped_file* of = nullptr) : read_(std::move(bytes)) {
    if (of == nullptr) return;
    path_ = of->path_;
    may_change_ = of->may_change_;
    state_ = of->state_;
  }

  /// The path of the file, for messages.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// All of it; never empty when it is a file. Valid as long as this object.
  [[nodiscard]] std::string_view text() const noexcept {
    return mapped_ ? std::string_view(mapped_.get(), mapped_.get_deleter().size)
                   : std::string_view(read_.data(), read_.size());
  }
  /// The same, for formats that are no text.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return std::as_bytes(std::span(text())); }

  /// Tells the states of the file on this host apart: by size, times, inode and device as it was opened, of an address
  /// by the version that the server has. Another one after a copy, and on another host. Nothing where a change would
  /// not be known: of a server that tells versions apart by seconds alone.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const noexcept { return state_; }
  /// The same of what lies at the path now, if it is one of this host.
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;

  /// Gives back the memory that it takes of this process, where it is mapped: reading it again maps it again, from the
  /// page cache or the disk. All of it, for Linux maps a folio of the page cache with a page of it that is read.
  void forget() const noexcept;

 private:
  struct unmap {
    std::size_t size;
    std::shared_ptr<const void> owner;  // of memory that is not this file's to unmap
    void operator()(const char* memory) const noexcept;
  };

  void open(const std::string& path);
  void fetch(const std::string& path, const http_options& http);
  void map(int file, std::size_t size, const std::string& path);

  std::string path_;
  std::unique_ptr<const char, unmap> mapped_;
  std::vector<char> read_;
  bool may_change_ = false;  // the state of the file at the path
  std::optional<std::uint64_t> state_ = 0;
};

}}  // namespace muster::v0
