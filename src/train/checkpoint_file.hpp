// One file of a checkpoint: a head, a table of parts, the parts. docs/checkpoints.md has it byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <muster/elastic/state.hpp>

namespace muster::inline v0::detail {

/// A rank's own file, as that of rank 0 knows it.
struct checkpoint_rank {
  std::uint64_t bytes = 0;  ///< 0: it has nothing of its own
  std::uint32_t crc = 0;    ///< of the whole file
};

/// What a file says before its parts.
struct checkpoint_head {
  static constexpr std::uint32_t replicated = 0xffffffff;

  std::uint32_t rank = replicated;  ///< the owner of the parts; `replicated`: all ranks
  std::uint64_t id = 0;             ///< the files of one checkpoint have one
  double metric = 0;
  state_position position;
  std::vector<checkpoint_rank> ranks;  ///< in the file of replicated parts: one for each rank of the world
};

struct checkpoint_part {
  std::string name;
  std::span<const std::byte> bytes;
};

/// A file that was read: views of its bytes.
struct checkpoint_image {
  checkpoint_head head;
  std::vector<checkpoint_part> parts;
};

/// Files are written and read in pieces of so many bytes: few enough that a slow disk (a megabyte a second) has one
/// well before the deadlines of ranks that wait for it, enough that flushing each costs little.
inline constexpr std::size_t checkpoint_piece = std::size_t{16} << 20;

/// Writes one, whole or not at all; returns its size and checksum. Calls `on_piece` after each piece that is on the
/// disk. Throws configuration_error.
checkpoint_rank write_checkpoint(const std::string& path, const checkpoint_head& head,
                                 std::span<const checkpoint_part> parts, const std::function<void()>& on_piece);

/// Checks everything that can be wrong with the bytes of a file; `name` is for the data_error that it throws.
[[nodiscard]] checkpoint_image parse_checkpoint(std::span<const std::byte> file, const std::string& name);

/// What a file says of itself, without its parts, which may be damaged. Throws data_error.
[[nodiscard]] checkpoint_head read_checkpoint_head(const std::string& path);

/// The bytes of a file. Calls `on_piece` after each piece. Throws data_error when it cannot be read.
[[nodiscard]] std::vector<std::byte> read_whole_file(const std::string& path, const std::function<void()>& on_piece);

}  // namespace muster::inline v0::detail
