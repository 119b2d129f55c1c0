// Records in the memory of one process; private to the cache step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/data/cursor.hpp>

namespace muster::inline v0::detail {

/// std::memcpy() that takes nothing, wherever that is.
inline void copy_some(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

/// Where each record lies when all lie one behind another, each on a 64-byte boundary with its labels behind it.
class cached_places {
 public:
  /// Of `size` records of `record_bytes`, or of these sizes.
  cached_places(std::uint64_t size, std::size_t record_bytes, std::vector<std::uint64_t> sizes, std::size_t label_width)
      : size_(size), record_bytes_(record_bytes), label_bytes_(label_width * sizeof(float)), begins_(std::move(sizes)) {
    if (record_bytes_ != 0) return;
    lengths_ = begins_;
    std::uint64_t at = 0;
    for (std::uint64_t& begin : begins_) {
      const std::uint64_t length = begin;
      begin = at;
      at += room(length);
    }
    begins_.push_back(at);
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t begin(std::uint64_t id) const noexcept {
    return record_bytes_ != 0 ? id * room(record_bytes_) : begins_[id];
  }
  [[nodiscard]] std::uint64_t end() const noexcept { return begin(size_); }
  [[nodiscard]] std::size_t length(std::uint64_t id) const noexcept {
    return record_bytes_ != 0 ? record_bytes_ : lengths_[id];
  }
  /// Bytes from the start of a record to its labels.
  [[nodiscard]] std::size_t label_offset(std::uint64_t id) const noexcept {
    return (length(id) + sizeof(float) - 1) / sizeof(float) * sizeof(float);
  }
  [[nodiscard]] std::size_t label_bytes() const noexcept { return label_bytes_; }
  /// How many records, from the first on, take at most `bytes`.
  [[nodiscard]] std::uint64_t fitting(std::uint64_t bytes) const noexcept {
    if (record_bytes_ != 0) return std::min(size_, bytes / room(record_bytes_));
    const auto behind = std::upper_bound(begins_.begin(), begins_.end(), bytes);
    return behind == begins_.begin() ? 0 : static_cast<std::uint64_t>(behind - begins_.begin() - 1);
  }

 private:
  [[nodiscard]] std::uint64_t room(std::uint64_t length) const noexcept {
    const std::uint64_t with_labels = (length + sizeof(float) - 1) / sizeof(float) * sizeof(float) + label_bytes_;
    return (with_labels + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
  }

  std::uint64_t size_;
  std::size_t record_bytes_;
  std::size_t label_bytes_;
  std::vector<std::uint64_t> begins_;   // of records that differ
  std::vector<std::uint64_t> lengths_;  // of the same
};

/// All records of a source: the memory is there at once, and used when a record comes.
class whole_memory_cache {
 public:
  explicit whole_memory_cache(const cached_places& places)
      : places_(places), states_(places.size()), bytes_(places.end()), labels_(places.size() * places.label_bytes()) {}

  [[nodiscard]] std::span<const std::byte> view(sample_id id, std::span<float> labels) const noexcept {
    if (states_[id].load(std::memory_order_acquire) != here) return {};
    copy_some(labels.data(), labels_.data() + id * places_.label_bytes(), labels.size_bytes());
    return {bytes_.data() + places_.begin(id), places_.length(id)};
  }
  /// False when another thread was first.
  bool put(sample_id id, std::span<const std::byte> record, std::span<const float> labels) noexcept {
    auto state = absent;
    if (!states_[id].compare_exchange_strong(state, coming, std::memory_order_relaxed)) return false;
    copy_some(bytes_.data() + places_.begin(id), record.data(), record.size());
    copy_some(labels_.data() + id * places_.label_bytes(), labels.data(), labels.size_bytes());
    states_[id].store(here, std::memory_order_release);
    return true;
  }

 private:
  static constexpr std::uint8_t absent = 0, coming = 1, here = 2;

  const cached_places& places_;
  std::vector<std::atomic<std::uint8_t>> states_;
  buffer<std::byte> bytes_;
  buffer<std::byte> labels_;  // apart, so that they are found without a wait while records are on their way
};

}  // namespace muster::inline v0::detail
