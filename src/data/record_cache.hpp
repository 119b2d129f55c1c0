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

  /// Whether find() may need room for a copy.
  [[nodiscard]] bool copies() const noexcept { return bounded_.front().has_value(); }
  /// Where record `id` lies, which stays while this object does, or a copy of it in `to`; null if it is not here.
  /// Writes its labels.
  [[nodiscard]] std::span<const std::byte> find(sample_id id, std::span<std::byte> to, std::span<float> labels);
  /// Keeps a record that was not here.
  void put(sample_id id, std::span<const std::byte> record, std::span<const float> labels);
  [[nodiscard]] cache_statistics statistics() const noexcept {
    return {hits_, misses_, hit_bytes_, miss_bytes_, bytes_, evictions_};
  }

 private:
  static constexpr std::size_t parts = 8;  // of a bounded cache, so that threads seldom meet

  void keep_in_memory(sample_id id, std::span<const std::byte> record, std::span<const float> labels);

  const cache_options options_;
  const cached_places places_;
  const cache_identity identity_;
  std::optional<whole_memory_cache> whole_;              // all records fit
  std::array<std::optional<lru_cache>, parts> bounded_;  // or they do not
  std::unique_ptr<disk_cache> disk_;
  std::atomic<std::uint64_t> hits_{0}, hit_bytes_{0}, misses_{0}, miss_bytes_{0}, bytes_{0}, evictions_{0};
};

}  // namespace muster::inline v0::detail
