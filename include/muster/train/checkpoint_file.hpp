// The file format of a checkpoint: a head, the parts, a checksum. docs/checkpoints.md describes each byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <muster/elastic/state.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The header of a file.
struct checkpoint_head {
  static constexpr std::int32_t all_ranks = -1;

  std::int32_t rank = all_ranks;  ///< the owner of the parts
  std::int32_t ranks = 0;         ///< size of the world that saved it
  std::uint64_t id = 0;           ///< shared by all files of a checkpoint
  double metric = 0;
  state_position position;
};

struct checkpoint_part {
  std::string name;
  std::span<const std::byte> bytes;
  std::vector<std::byte> copy{};  ///< owns the bytes of a copied part
};

/// The contents of a file that was read: views of its bytes.
struct checkpoint_image {
  checkpoint_head head;
  std::vector<checkpoint_part> parts;
};

/// Creates the folder and its parent folders. Throws configuration_error where that fails, or where the folder is not
/// writable.
void require_checkpoint_folder(const std::string& folder);

/// Writes a file completely or not at all. Calls `on_piece` after each piece that is on the disk. Throws
/// configuration_error.
void write_checkpoint(const std::string& path, const checkpoint_head& head, std::span<const checkpoint_part> parts,
                      const std::function<void()>& on_piece);

/// Parses a file and verifies all its bytes. `name` is the file's name in the data_error for an invalid file.
[[nodiscard]] checkpoint_image parse_checkpoint(std::span<const std::byte> content, const std::string& name);

/// Reads the header of a file without its parts, which may be damaged. Throws data_error.
[[nodiscard]] checkpoint_head read_checkpoint_head(const std::string& path);

}}}  // namespace muster::v0::detail
