// How far training has come in the data: all that is needed to go on from there, in any world.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

namespace muster::inline v0 {

/// How the samples of an epoch follow each other; the numbers are part of saved cursors and stay.
enum class sample_order : std::uint32_t {
  sequential = 0,  ///< as in the dataset
  shuffled = 1     ///< permutation(seed, epoch, size)
};

/// A position in an endless row of epochs, and what that row is made of. Plain bytes: sent and saved as it is.
struct cursor {
  /// The version of the functions from (seed, epoch, position) to a sample; a change of these is a new version.
  static constexpr std::uint32_t current_version = 1;

  std::uint32_t version = current_version;
  sample_order order = sample_order::sequential;
  std::uint64_t dataset = 0;   ///< digest
  std::uint64_t size = 0;      ///< samples of an epoch
  std::uint64_t seed = 0;      ///< 0 in sequential order
  std::uint64_t batch = 0;     ///< global batch size
  std::uint64_t epoch = 0;     ///< from 0
  std::uint64_t position = 0;  ///< samples of the epoch that committed steps have used

  friend bool operator==(const cursor&, const cursor&) = default;
};

static_assert(std::is_trivially_copyable_v<cursor> && sizeof(cursor) <= 128);
static_assert(std::has_unique_object_representations_v<cursor>, "a cursor has no padding: equal cursors, equal bytes");

namespace detail {

/// What of two cursors' rows of epochs differs ("the seed (1 there, 2 here) and ..."); empty when `there` is a place in
/// the row that `here` is in.
[[nodiscard]] std::string difference(const cursor& there, const cursor& here);

}  // namespace detail

}  // namespace muster::inline v0
