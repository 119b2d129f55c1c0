// A shuffle for data that is read from a disk or a network: the blocks are in any order, and samples are mixed within a
// window.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include <muster/core/error.hpp>
#include <muster/data/order/feistel.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// An order of the ids 0 .. size - 1 in which `block` neighbours stay near each other. The blocks are in shuffled
/// order, and the samples of each `window` consecutive blocks are shuffled together. A reader of an epoch therefore
/// reads `window` blocks at a time, each from its start to its end, and no other blocks. The order is computed and not
/// stored: it needs constant memory, and any position is computed in O(1).
///
/// Two samples in the same block are never farther apart than window * block positions. Larger windows mix better and
/// require more of the file in memory at a time.
class block_window_permutation {
 public:
  /// Creates the order of zero samples.
  block_window_permutation() = default;
  /// Takes `block` samples a block (the last block may have fewer) and `window` blocks a window. Throws
  /// configuration_error if `block` or `window` is 0, or for more than 2^63 samples. O(1).
  block_window_permutation(std::uint64_t seed, std::uint64_t epoch, std::uint64_t size, std::uint64_t block,
                           std::uint64_t window)
      : seed_(seed), epoch_(epoch), size_(size) {
    if (block == 0 || window == 0) {
      throw configuration_error("cannot shuffle in windows of " + std::to_string(window) + " blocks of " +
                                std::to_string(block) +
                                " samples (both must be at least 1); leave them out for defaults");
    }
    block_ = std::min(block, std::max<std::uint64_t>(size, 1));
    const std::uint64_t blocks = size / block_ + (size % block_ != 0 ? 1 : 0);
    window_ = std::min(window, std::max<std::uint64_t>(blocks, 1));
    blocks_ = feistel_permutation(seed, epoch, blocks);
    missing_ = blocks * block_ - size;
    short_place_ = missing_ == 0 ? blocks : blocks_.position_of(blocks - 1);
    short_window_ = short_place_ / window_;
  }

  /// Writes the samples at the positions [first, first + ids.size()) in the epoch to `ids`. Faster than single
  /// look-ups, because each window is looked up once.
  void fill(std::uint64_t first, std::span<sample_id> ids) const noexcept {
    while (!ids.empty()) {
      const one_window window = window_at(first);
      const std::uint64_t remaining = window.first + window.order.size() - first;
      const auto part = ids.first(std::min<std::uint64_t>(ids.size(), remaining));
      window.order.fill(first - window.first, part);
      // The blocks of the window, looked up once if more samples are requested than the window has blocks.
      std::array<sample_id, 64> blocks;
      const bool few = window_ <= blocks.size() && window_ <= part.size();
      if (few) {
        const std::uint64_t block_count = std::min(window_, blocks_.size() - window.number * window_);
        blocks_.fill(window.number * window_, std::span(blocks).first(block_count));
      }
      for (sample_id& id : part) {
        const place at = window.place_of(*this, id);
        id = (few ? blocks[at.block] : blocks_[window.number * window_ + at.block]) * block_ + at.sample;
      }
      first += part.size();
      ids = ids.subspan(part.size());
    }
  }

 private:
  struct place {
    std::uint64_t block;   // index in the window
    std::uint64_t sample;  // index in the block
  };
  struct one_window {
    std::uint64_t number;
    std::uint64_t first;  // position of its first sample in the epoch
    feistel_permutation order;

    /// Returns the block, and the index in the block, of sample `at` when the window's blocks are concatenated.
    [[nodiscard]] place place_of(const block_window_permutation& all, std::uint64_t at) const noexcept {
      // The samples after the short block are moved forward by the number of missing samples.
      if (number == all.short_window_) {
        const std::uint64_t end_of_short = (all.short_place_ - number * all.window_ + 1) * all.block_ - all.missing_;
        if (at >= end_of_short) at += all.missing_;
      }
      return {at / all.block_, at % all.block_};
    }
  };

  [[nodiscard]] one_window window_at(std::uint64_t position) const noexcept {
    const std::uint64_t full = window_ * block_;
    const std::uint64_t before_short = short_window_ * full;
    const bool behind = missing_ != 0 && position >= before_short && position - before_short >= full - missing_;
    const std::uint64_t number = (behind ? position + missing_ : position) / full;
    const std::uint64_t first = number * full - (behind ? missing_ : 0);
    const std::uint64_t own = number == short_window_ ? full - missing_ : full;
    const std::uint64_t count = std::min(own, size_ - first);
    // The seed of a window's order includes the window's number, so that windows have different orders.
    return {number, first, feistel_permutation(mix(seed_ ^ 0x77696e646f770000ULL) + number, epoch_, count)};
  }

  std::uint64_t seed_ = 0;
  std::uint64_t epoch_ = 0;
  std::uint64_t size_ = 0;
  std::uint64_t block_ = 1;
  std::uint64_t window_ = 1;
  std::uint64_t missing_ = 0;       // number of samples that the short block lacks; 0: all blocks are full
  std::uint64_t short_place_ = 0;   // position of the short block in the order of blocks
  std::uint64_t short_window_ = 0;  // window that contains the short block
  feistel_permutation blocks_;
};

}}}}  // namespace muster::v0::data::detail
