// Blocks of memory that were used of late; private to muster's own sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace muster::inline v0::detail {

/// Blocks by number, up to so many bytes (their size()): the least recently used go. Any thread may call any function;
/// a block stays for as long as a caller holds it.
template <class Block>
class lru_cache_of {
 public:
  using block = std::shared_ptr<const Block>;

  explicit lru_cache_of(std::size_t budget) : budget_(budget) {}

  /// Null when it is not here.
  [[nodiscard]] block get(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    by_use_.splice(by_use_.begin(), by_use_, found->second);
    return found->second->second;
  }

  /// How many bytes more are here, and how many blocks went.
  struct change {
    std::int64_t bytes = 0;
    std::uint64_t evictions = 0;
  };
  /// Does nothing for a block that is here already, or is larger than the budget.
  change put(std::uint64_t key, block made) {
    change told;
    const std::size_t size = made->size();
    const std::lock_guard lock(mutex_);
    if (size + overhead > budget_ || places_.contains(key)) return told;
    while (bytes_ + size + overhead > budget_) {
      const std::size_t oldest = by_use_.back().second->size();
      bytes_ -= oldest + overhead;
      told.bytes -= static_cast<std::int64_t>(oldest);
      ++told.evictions;
      places_.erase(by_use_.back().first);
      by_use_.pop_back();
    }
    by_use_.emplace_front(key, std::move(made));
    places_[key] = by_use_.begin();
    bytes_ += size + overhead;
    told.bytes += static_cast<std::int64_t>(size);
    return told;
  }

 private:
  using entry = std::pair<std::uint64_t, block>;
  static constexpr std::size_t overhead = 128;  // about what list, table and allocator take for a block

  const std::size_t budget_;
  std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::list<entry> by_use_;  // the last used first
  std::unordered_map<std::uint64_t, typename std::list<entry>::iterator> places_;
};

using lru_cache = lru_cache_of<std::vector<std::byte>>;

}  // namespace muster::inline v0::detail
