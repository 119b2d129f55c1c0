// Files of any size, with a checksum behind, that are written and read while others wait.
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

/// Files are written and read in pieces of so many bytes: few enough that a slow disk (a megabyte a second) has one
/// well before the deadlines of ranks that wait for it, enough that flushing each costs little.
inline constexpr std::size_t file_piece = std::size_t{16} << 20;

/// A file that is there whole or not at all, with the CRC-32C of all its bytes at its end. `on_piece` is called after
/// each piece that is on the disk: ranks that wait for this one are to hear of it.
class checked_file {
 public:
  /// Throws configuration_error, as all calls do, where it cannot be written.
  checked_file(const std::string& path, std::function<void()> on_piece) : file_(path), on_piece_(std::move(on_piece)) {}

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Writes the checksum, and makes it the file at that path.
  void commit();

 private:
  atomic_file file_;
  std::function<void()> on_piece_;
  std::uint32_t crc_ = 0;
  std::size_t unflushed_ = 0;
};

/// The bytes of a file. Calls `on_piece` after each piece. Throws data_error when it cannot be read.
[[nodiscard]] std::vector<std::byte> read_whole_file(const std::string& path, const std::function<void()>& on_piece);

/// Throws data_error, with what errno says, unless it is readable.
void require_readable(bool is_readable, const std::string& path);

}}}  // namespace muster::v0::detail
