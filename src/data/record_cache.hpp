// Records that were made once and are kept; private to the cache step.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/data/cache.hpp>
#include <muster/data/cursor.hpp>
#include "disk_cache.hpp"
#include "lru_cache.hpp"
#include "memory_cache.hpp"

namespace muster::inline v0::detail {

/// Records by id, in memory, on disk or both. Any thread may call any function.
class record_cache {
 public:
  /// Throws configuration_error for options that say nothing, or a folder for steps without a version. A folder that
  /// cannot be used, because the disk is full or it may not be written, is a warning: nothing is kept there then.
  record_cache(const cache_options& options, cache_identity identity);

  /// Where record `id` lies if it is here and stays while this object does; else null, which says nothing: get() may
  /// have it. Writes its labels.
  [[nodiscard]] std::span<const std::byte> view(sample_id id, std::span<float> labels) const noexcept;
  /// Asks the processor for a record that get() will want next.
  void fetch_ahead(sample_id id) const noexcept;
  /// Copies record `id` and its labels if it is here.
  [[nodiscard]] bool get(sample_id id, std::span<std::byte> to, std::span<float> labels);
  /// Keeps a record that was not here.
  void put(sample_id id, std::span<const std::byte> record, std::span<const float> labels);
  [[nodiscard]] cache_statistics statistics() const noexcept {
    return {hits_, misses_, hit_bytes_, miss_bytes_, bytes_, evictions_};
  }

 private:
  static constexpr std::size_t parts = 8;  // of a bounded cache, so that threads seldom meet

  void count_hit(std::size_t size) const noexcept;
  void keep_in_memory(sample_id id, std::span<const std::byte> record, std::span<const float> labels);

  const cache_options options_;
  const cached_places places_;
  const cache_identity identity_;
  std::optional<whole_memory_cache> whole_;              // all records fit
  std::array<std::optional<lru_cache>, parts> bounded_;  // or they do not
  std::unique_ptr<disk_cache> disk_;
  mutable std::atomic<std::uint64_t> hits_{0}, hit_bytes_{0};  // also of view()
  std::atomic<std::uint64_t> misses_{0}, miss_bytes_{0}, bytes_{0}, evictions_{0};
};

}  // namespace muster::inline v0::detail
