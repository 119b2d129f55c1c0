// How far training has come in the data: all that is needed to go on from there, in any world.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster { inline namespace v0 {

namespace detail {
class batch_sampler;
}

/// The number of a sample in its dataset, from 0. 64 bits although a dataset in memory rarely has 2^32 samples: ids are
/// few at a time (those of one batch) while sources on disk may be larger, and a type in an interface cannot grow
/// later.
using sample_id = std::uint64_t;

/// How the samples of an epoch follow each other; the numbers are part of saved cursors and stay.
enum class sample_order : std::uint32_t {
  sequential = 0,   ///< as in the dataset
  shuffled = 1,     ///< a function of (seed, epoch, size): exact, with a table of 4 bytes a sample
  feistel = 2,      ///< a function of (seed, epoch, size): no table, any size
  block_window = 3  ///< a function of (seed, epoch, size, block, window): for data that is not in memory
};

/// "shuffled", "block_window" and so on.
[[nodiscard]] std::string_view to_string(sample_order order) noexcept;

/// A position in an endless row of epochs, and what that row is made of. Plain bytes: sent and saved as it is.
struct cursor {
  /// The version of the functions from (seed, epoch, position) to a sample; a change of these is a new version.
  static constexpr std::uint32_t current_version = 2;

  std::uint32_t version = current_version;  ///< of the functions; a loader refuses a cursor of another one
  sample_order order = sample_order::sequential;
  std::uint64_t dataset = 0;    ///< digest
  std::uint64_t size = 0;       ///< samples of an epoch
  std::uint64_t seed = 0;       ///< 0 in sequential order
  std::uint64_t block = 0;      ///< samples of a block; 0 but in block_window order
  std::uint32_t window = 0;     ///< blocks of a window; 0 but in block_window order
  std::uint16_t drop_last = 0;  ///< 1: a last batch that is not full is left out
  std::uint16_t per_rank = 0;   ///< 1: the batch is that of each rank, and a step's as large as the ranks' together
  std::uint64_t batch = 0;      ///< global batch size, or that of a rank
  std::uint64_t epoch = 0;      ///< from 0
  std::uint64_t position = 0;   ///< samples of the epoch that committed steps have used, or left out

  // Where samples join an epoch that has begun (`every` of a source that is followed): they are used next, in an order
  // of their own, and then the epoch goes on where it was.
  std::uint64_t joined = 0;       ///< samples that have joined this epoch, the last ones of `size`
  std::uint64_t joined_last = 0;  ///< of these, those that came together last
  std::uint64_t joined_used = 0;  ///< of `position`, those that had joined

  friend bool operator==(const cursor&, const cursor&) = default;
};

static_assert(std::is_trivially_copyable_v<cursor> && sizeof(cursor) <= 128);
static_assert(std::has_unique_object_representations_v<cursor>, "a cursor has no padding: equal cursors, equal bytes");

/// What `cursor()` of a loader gives that can be changed: the cursor as it is at that moment, to copy, save or compare,
/// and a way to move the loader on, which is how a `state` goes with it. Refers to the loader, which may be moved but
/// must live as long; the cursor itself can be used without it.
class live_cursor : public cursor {
 public:
  /// Made by loader::cursor().
  explicit live_cursor(detail::batch_sampler& plan) noexcept;

  /// The loader's cursor as it is now.
  [[nodiscard]] const cursor& now() const noexcept;
  /// Whether it is at the end of its epoch.
  [[nodiscard]] bool epoch_is_over() const noexcept;
  /// What ranks that train together have alike, by name: seed, batch and so on, and, where all of them read one source,
  /// the number of its samples and its digest.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> properties() const;
  /// As the loader's functions of these names.
  void open(const cursor& there) const;
  void commit() const;
  void next_epoch() const;

 private:
  detail::batch_sampler* plan_;
};

namespace detail {

/// What of two cursors' rows of epochs differs ("the seed is 1 there and 2 here, ..."); empty when `there` is a place
/// in the row that `here` is in.
[[nodiscard]] std::string difference(const cursor& there, const cursor& here);

}  // namespace detail

}}  // namespace muster::v0
