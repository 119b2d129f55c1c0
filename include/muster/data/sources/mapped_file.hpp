// The contents of a file as bytes, plain or compressed.
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

namespace muster { inline namespace v0 { namespace data {

namespace detail {

/// Receives decompressed bytes, piece after piece.
using text_sink = std::function<void(std::span<const char> plain)>;
/// Decompresses bytes. `path` is used in its data_error.
using text_decoder = void (*)(std::string_view compressed, const std::string& path, const text_sink& sink);
/// Maximum size of a piece that a decoder passes to its sink, in bytes.
inline constexpr std::size_t decoded_piece_bytes = std::size_t{1} << 18;

/// Maximum size of text that is held in memory together with its parsed values, in bytes. Larger text is parsed when
/// its records are read (with read_options::on_demand), and text that was compressed is stored in a temporary file. The
/// limit is a constant and does not depend on this machine's memory, because the order of samples depends on it.
inline constexpr std::size_t most_text_in_memory = std::size_t{64} << 20;

/// The memory limits for text that is parsed during reading.
struct text_limits {
  /// Size of the text in a block, in bytes. A block is parsed at once.
  std::size_t piece_bytes = std::size_t{128} << 10;
  /// Size of the parsed blocks in memory, in bytes: more than the 48 MiB of a window in block_window order.
  std::size_t cache_bytes = std::size_t{64} << 20;
};

/// Sets the decoder for gzip, null for none, and returns the previous decoder. Thread safe.
text_decoder set_gzip_decoder(text_decoder decoder) noexcept;
/// Sets the decoder for Zstandard in the same way.
text_decoder set_zstd_decoder(text_decoder decoder) noexcept;

/// Returns a digest of the states of several objects, or nothing if an object has no state. `state(each)` returns an
/// object's state.
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

/// The treatment of a file that begins like gzip or Zstandard data: decompressed, or read unchanged.
enum class compressed_files { decoded, as_they_are };

/// The contents of a file. A plain file is mapped into memory and has no cost until it is read. A pipe is read to its
/// end. A compressed file, recognised by its first bytes and not by its name, is decompressed if the program links
/// muster::zlib (gzip) or muster::zstd (Zstandard), and is a data_error otherwise. The decompressed contents are in
/// memory up to 64 MiB, and otherwise in an unnamed file in the folder for temporary files, which is deleted with this
/// object.
///
/// The file at an address (see http_options) is fetched completely into the cache of the host, and the cache file is
/// mapped like a plain file.
///
/// The file must not be shortened while it is mapped: reading beyond the new end terminates the process (SIGBUS).
class mapped_file {
 public:
  /// Throws data_error for a path that is missing, a directory, empty, not readable or not correctly compressed. Throws
  /// configuration_error if the folder for temporary files has no space for a large file.
  explicit mapped_file(const std::string& path, compressed_files compressed = compressed_files::decoded,
                       const http_options& http = {});

  /// Takes bytes that are already in memory, for readers that modify the contents of a file. `original` is the file,
  /// if any.
  explicit mapped_file(std::vector<char> bytes, const mapped_file* original = nullptr) : read_(std::move(bytes)) {
    if (original == nullptr) return;
    path_ = original->path_;
    may_change_ = original->may_change_;
    state_ = original->state_;
  }

  /// Takes a part of the file `original`, compressed by gzip, and decompresses it like a file. `name` is for errors.
  /// Throws data_error unless the result has `size` bytes.
  mapped_file(const mapped_file& original, std::string_view part, const std::string& name, std::uint64_t size);

  /// Returns the path of the file, for messages.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Returns the whole contents. The contents of a file are never empty. Valid as long as this object.
  [[nodiscard]] std::string_view text() const noexcept {
    return mapped_ ? std::string_view(mapped_.get(), mapped_.get_deleter().size)
                   : std::string_view(read_.data(), read_.size());
  }
  /// Returns the whole contents, for formats that are not text.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return std::as_bytes(std::span(text())); }

  /// Returns a value that distinguishes states of the file on this host, as of opening. It is computed from size,
  /// times, inode and device, or for an address from the server's version of the file. It differs after a copy, and on
  /// another host. Returns nothing if a change would not be detected, as for a server that distinguishes versions by a
  /// time in seconds alone. For a pipe it is computed from the contents.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const noexcept { return state_; }
  /// Returns the current state of the file at the path, if the file is on this host, and otherwise host_state().
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;

  /// Releases the memory that the mapping occupies in this process. Later reads map the file again, from the page cache
  /// or the disk. The whole mapping is released, because Linux maps a whole folio of the page cache when any of its
  /// pages is read.
  void forget() const noexcept;

 private:
  struct unmap {
    std::size_t size;
    std::shared_ptr<const void> owner;  // owner of memory that this object must not unmap
    void operator()(const char* memory) const noexcept;
  };

  void open(const std::string& path);
  void fetch(const std::string& path, const http_options& http);
  // Replaces the contents by the decompressed text, of at most `most` bytes.
  void decode(std::string_view compressed, const std::string& path, std::uint64_t most);
  void map(int file, std::size_t size, const std::string& path);

  std::string path_;
  std::unique_ptr<const char, unmap> mapped_;
  std::vector<char> read_;
  bool may_change_ = false;  // true if the state of the file at the path may change
  std::optional<std::uint64_t> state_ = 0;
};

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
