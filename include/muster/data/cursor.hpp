// The position of a training in the data: the complete state for resuming in any world.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster { inline namespace v0 { namespace data {

namespace detail {
class batch_sampler;
}

/// The number of a sample in its dataset, from 0. It has 64 bits although a dataset in memory rarely has 2^32 samples.
/// Few ids are in memory at a time (the ids of one batch), while sources on disk may be larger, and a type in an
/// interface cannot be widened later.
using sample_id = std::uint64_t;

/// The order of the samples in an epoch. The numbers are part of saved cursors and must not change.
enum class sample_order : std::uint32_t {
  sequential = 0,   ///< in the order of the dataset
  shuffled = 1,     ///< a function of (seed, epoch, size): exact, with a table of 4 bytes a sample
  feistel = 2,      ///< a function of (seed, epoch, size): no table, any size
  block_window = 3  ///< a function of (seed, epoch, size, block, window): for data that is not in memory
};

/// Returns the name of the order, such as "shuffled" or "block_window".
[[nodiscard]] std::string_view to_string(sample_order order) noexcept;

/// A position in an endless sequence of epochs, with the sequence's parameters. Trivially copyable: sent and
/// saved as bytes.
struct cursor {
  /// The version of the functions from (seed, epoch, position) to a sample. Any change to these functions has a new
  /// version.
  static constexpr std::uint32_t current_version = 2;

  /// Version of the functions; a loader refuses a cursor with another version.
  std::uint32_t version = current_version;
  sample_order order = sample_order::sequential;
  std::uint64_t dataset = 0;    ///< digest of the dataset
  std::uint64_t size = 0;       ///< number of samples in an epoch
  std::uint64_t seed = 0;       ///< 0 in sequential order
  std::uint64_t block = 0;      ///< number of samples in a block; 0 unless in block_window order
  std::uint32_t window = 0;     ///< number of blocks in a window; 0 unless in block_window order
  std::uint16_t drop_last = 0;  ///< 1: the last batch is left out if it is not full
  /// 1: `batch` is the batch size per rank, and a step's batch is the sum over the ranks
  std::uint16_t per_rank = 0;
  std::uint64_t batch = 0;     ///< global batch size, or the batch size of a rank
  std::uint64_t epoch = 0;     ///< from 0
  std::uint64_t position = 0;  ///< number of samples in the epoch that committed steps have used or left out

  // Fields for samples that join a running epoch (`every` for a followed source). The new samples are used next, in an
  // order of their own. Then the epoch continues at its previous position.
  std::uint64_t joined = 0;       ///< number of samples that have joined this epoch, the last samples of `size`
  std::uint64_t joined_last = 0;  ///< number of samples in the most recent addition, included in `joined`
  std::uint64_t joined_used = 0;  ///< number of joined samples included in `position`

  friend bool operator==(const cursor&, const cursor&) = default;
};

static_assert(std::is_trivially_copyable_v<cursor> && sizeof(cursor) <= 128);
static_assert(std::has_unique_object_representations_v<cursor>, "a cursor has no padding: equal cursors, equal bytes");

/// A handle for a loader's cursor, returned by `cursor()` of a mutable loader: a copy of the cursor at that moment, to
/// copy, save or compare, and functions that move the loader, which a `state` uses. It refers to the loader, which may
/// be moved but must outlive the handle. The copied cursor can be used without the loader.
class sampler_handle : public cursor {
 public:
  /// Created by loader::cursor().
  explicit sampler_handle(detail::batch_sampler& plan) noexcept;

  /// Returns the loader's current cursor.
  [[nodiscard]] const cursor& current() const noexcept;
  /// Returns true if the loader is at the end of its epoch.
  [[nodiscard]] bool epoch_is_over() const noexcept;
  /// Returns the properties that must be equal at ranks that train together, by name: seed, batch size and so on. If
  /// all ranks read the same source, they include its number of samples and its digest.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> properties() const;
  /// The loader's functions with these names.
  void open(const cursor& start) const;
  void commit() const;
  void next_epoch() const;

 private:
  detail::batch_sampler* plan_;
};

namespace detail {

/// Returns the differences between the epoch sequences of two cursors ("the seed is 1 there and 2 here, ..."). Returns
/// an empty string if `saved` is a position in the epoch sequence of `expected`.
[[nodiscard]] std::string difference(const cursor& saved, const cursor& expected);

}  // namespace detail

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::cursor;
using data::sample_id;
using data::sample_order;
using data::sampler_handle;
using data::to_string;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
