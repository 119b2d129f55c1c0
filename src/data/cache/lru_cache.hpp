// A cache of the most recently used blocks of memory. Private to muster's own sources.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace muster { inline namespace v0 { namespace detail {

/// Blocks by number, up to a total size of `budget` bytes (the sum of their size()). The least recently used blocks are
/// evicted. Any thread may call any function. A block remains valid as long as a caller holds it.
template <class Block>
class lru_cache {
 public:
  using block = std::shared_ptr<const Block>;

  explicit lru_cache(std::size_t budget) : budget_(budget) {}

  /// Returns block `key`. If the block is absent, make() creates it or returns null. Threads that request the same
  /// block wait for the first thread.
  template <class Make>
  [[nodiscard]] block get(std::uint64_t key, const Make& make) {
    if (block found = find(key)) return found;
    const std::lock_guard lock(making_[key % making_.size()]);
    if (block found = find(key)) return found;
    block made = make();
    if (made) keep(key, made);
    return made;
  }

  /// Returns block `key`, or null if it is absent.
  [[nodiscard]] block find(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    by_use_.splice(by_use_.begin(), by_use_, found->second);
    return found->second->second;
  }
  /// Adds a block as the most recently used. Does nothing for a block that is larger than the budget.
  void keep(std::uint64_t key, const block& made) {
    const std::size_t size = made->size() + overhead;
    if (size > budget_) return;
    const std::lock_guard lock(mutex_);
    for (; bytes_ + size > budget_; by_use_.pop_back()) {
      bytes_ -= by_use_.back().second->size() + overhead;
      places_.erase(by_use_.back().first);
    }
    by_use_.emplace_front(key, made);
    places_[key] = by_use_.begin();
    bytes_ += size;
  }

 private:
  using entry = std::pair<std::uint64_t, block>;
  static constexpr std::size_t overhead = 128;  // approximate size of a block's entries in list, table and allocator

  const std::size_t budget_;
  std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::list<entry> by_use_;  // the most recently used entry is first; guarded by mutex_
  std::unordered_map<std::uint64_t, typename std::list<entry>::iterator> places_;
  std::array<std::mutex, 64> making_;  // mutex k is held while a block with key % 64 == k is created
};

}}}  // namespace muster::v0::detail
