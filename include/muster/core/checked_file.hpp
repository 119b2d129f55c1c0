// Files of any size with a checksum at the end, which are written and read in pieces while other ranks wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/atomic_file.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Size of the pieces in which files are written and read. A slow disk (a megabyte a second) finishes a piece well
/// before the deadlines of ranks that wait. Flushing a piece costs little compared to writing it.
inline constexpr std::size_t file_piece = std::size_t{16} << 20;

/// A file that is written completely or not at all, that ends with the CRC-32C of its bytes. `on_piece` is called
/// after each piece that is on the disk, so that waiting ranks are notified.
class checked_file {
 public:
  /// Creates the file. All calls throw configuration_error when writing fails.
  checked_file(const std::string& path, std::function<void()> on_piece) : file_(path), on_piece_(std::move(on_piece)) {}

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Writes the checksum, and renames the file to its path.
  void commit();

 private:
  atomic_file file_;
  std::function<void()> on_piece_;
  std::uint32_t crc_ = 0;
  std::size_t unflushed_ = 0;
};

/// Reads a file. Calls `on_piece` after each piece. Throws data_error when the file cannot be read.
[[nodiscard]] std::vector<std::byte> read_whole_file(const std::string& path, const std::function<void()>& on_piece);

/// Throws data_error with the text of errno unless `is_readable`.
void require_readable(bool is_readable, const std::string& path);

}}}  // namespace muster::v0::detail
