// The order of the epoch that a cursor is in, whichever kind it is of.
#pragma once

#include <cstdint>
#include <span>

#include <muster/data/cursor.hpp>
#include "block_window.hpp"
#include "feistel.hpp"
#include "permutation.hpp"

namespace muster::inline v0::detail {

/// P(seed, epoch, size) of each sample_order as one value: which sample is at which position of an epoch.
class sampler {
 public:
  /// The order of no samples.
  sampler() = default;

  /// Becomes the order of the epoch that `where` is in, which only its order, seed, epoch, size, block and window say.
  /// O(size) for a `shuffled` epoch, in the memory of the one before; O(1) for the others, and when it is of that epoch
  /// already. Throws configuration_error for a size that the order cannot have.
  void assign(const cursor& where);

  /// Whether assign(where) would change nothing.
  [[nodiscard]] bool is_of(const cursor& where) const noexcept;
  /// The number of samples.
  [[nodiscard]] std::uint64_t size() const noexcept { return of_.size; }
  /// The samples at the positions [first, first + ids.size()), all below size(). O(ids.size()).
  void fill(std::uint64_t first, std::span<sample_id> ids) const noexcept;

 private:
  cursor of_;
  permutation exact_;
  feistel_permutation feistel_;
  block_window_permutation blocks_;
};

}  // namespace muster::inline v0::detail
