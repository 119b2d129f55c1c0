// Decompressed blocks that were used of late; private to the reader of records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace muster::inline v0::detail::records {

/// A decompressed block, or null when its bytes are none.
using raw_block = std::shared_ptr<const std::vector<std::byte>>;

/// Keeps blocks up to a number of bytes, and lets those go that were not used for the longest time. Thread safe; a
/// block that two threads want at the same time is made by both.
class block_cache {
 public:
  explicit block_cache(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  template <class Make>
  raw_block get(std::uint64_t key, const Make& make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = places_.find(key); found != places_.end()) {
        used_.splice(used_.begin(), used_, found->second);
        return found->second->second;
      }
    }
    raw_block made = make();
    if (made == nullptr) return made;
    const std::lock_guard lock(mutex_);
    if (places_.contains(key)) return made;
    used_.emplace_front(key, made);
    places_[key] = used_.begin();
    bytes_ += made->size();
    while (bytes_ > most_bytes_ && !used_.empty()) {
      bytes_ -= used_.back().second->size();
      places_.erase(used_.back().first);
      used_.pop_back();
    }
    return made;
  }

 private:
  using entry = std::pair<std::uint64_t, raw_block>;
  const std::size_t most_bytes_;
  std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::list<entry> used_;  // the latest first
  std::unordered_map<std::uint64_t, std::list<entry>::iterator> places_;
};

}  // namespace muster::inline v0::detail::records
