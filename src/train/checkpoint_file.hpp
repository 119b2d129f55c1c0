// One file of a checkpoint: a head, the parts, a checksum. docs/checkpoints.md has it byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <muster/elastic/state.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// What a file says before its parts.
struct checkpoint_head {
  static constexpr std::int32_t all_ranks = -1;

  std::int32_t rank = all_ranks;  ///< the owner of the parts
  std::int32_t ranks = 0;         ///< of the world that saved it
  std::uint64_t id = 0;           ///< the files of one checkpoint have one
  double metric = 0;
  state_position position;
};

struct checkpoint_part {
  std::string name;
  std::span<const std::byte> bytes;
  std::vector<std::byte> kept{};  ///< where these are a copy
};

/// A file that was read: views of its bytes.
struct checkpoint_image {
  checkpoint_head head;
  std::vector<checkpoint_part> parts;
};

/// Makes the folder, with those above it. Throws configuration_error where it cannot, or where no file can be in it.
void require_checkpoint_folder(const std::string& folder);

/// Writes one, whole or not at all. Calls `on_piece` after each piece that is on the disk. Throws configuration_error.
void write_checkpoint(const std::string& path, const checkpoint_head& head, std::span<const checkpoint_part> parts,
                      const std::function<void()>& on_piece);

/// Checks everything that can be wrong with the bytes of a file; `name` is for the data_error that it throws.
[[nodiscard]] checkpoint_image parse_checkpoint(std::span<const std::byte> file, const std::string& name);

/// What a file says of itself, without its parts, which may be damaged. Throws data_error.
[[nodiscard]] checkpoint_head read_checkpoint_head(const std::string& path);

}}}  // namespace muster::v0::detail
