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

namespace muster { inline namespace v0 { namespace data { namespace detail {

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
    const std::lock_guard lock(creation_mutexes_[key % creation_mutexes_.size()]);
    if (block found = find(key)) return found;
    block created = make();
    if (created) keep(key, created);
    return created;
  }

  /// Returns block `key`, or null if it is absent.
  [[nodiscard]] block find(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    const auto found = positions_.find(key);
    if (found == positions_.end()) return nullptr;
    by_last_use_.splice(by_last_use_.begin(), by_last_use_, found->second);
    return found->second->second;
  }
  /// Adds a block, whose key must be absent, as the most recently used. Does nothing for a block that is larger than
  /// the budget.
  void keep(std::uint64_t key, const block& created) {
    const std::size_t size = created->size() + overhead;
    if (size > budget_) return;
    const std::lock_guard lock(mutex_);
    for (; bytes_ + size > budget_; by_last_use_.pop_back()) {
      bytes_ -= by_last_use_.back().second->size() + overhead;
      positions_.erase(by_last_use_.back().first);
    }
    by_last_use_.emplace_front(key, created);
    positions_[key] = by_last_use_.begin();
    bytes_ += size;
  }

 private:
  using entry = std::pair<std::uint64_t, block>;
  static constexpr std::size_t overhead = 128;  // approximate size of a block's entries in list, table and allocator

  const std::size_t budget_;
  std::mutex mutex_;
  std::size_t bytes_ = 0;         // size of all entries; guarded by mutex_
  std::list<entry> by_last_use_;  // the most recently used entry is first; guarded by mutex_
  std::unordered_map<std::uint64_t, typename std::list<entry>::iterator> positions_;  // guarded by mutex_
  std::array<std::mutex, 64> creation_mutexes_;  // mutex k is held while a block with key % 64 == k is created
};

}}}}  // namespace muster::v0::data::detail
