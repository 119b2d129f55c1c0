// How far each worker is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shard_map.hpp"

namespace muster::inline v0::ps {

/// The clocks of all workers as one server knows them. A worker that the map names and that was not heard yet is at 0:
/// so what the slowest has reached is never overestimated. O(workers) where it changes, O(1) else.
class clock_table {
 public:
  /// Forgets those that are fenced.
  void learn(const shard_map& map) {
    for (auto& one : known_) one.counts = false;
    for (const auto& who : map.workers) {
      auto& one = at(who.at);
      if (one.incarnation != who.incarnation) one = {who.incarnation, 0, false};
      one.counts = true;
    }
    refresh();
  }
  /// Whether that process is one of the map's.
  [[nodiscard]] bool has(const member& who) const noexcept {
    return who.at < known_.size() && known_[who.at].counts && known_[who.at].incarnation == who.incarnation;
  }
  /// A worker that `has`; whether its clock went on.
  bool hear(const member& who, std::uint64_t clock) {
    auto& one = known_[who.at];
    if (clock <= one.clock) return false;
    one.clock = clock;
    refresh();
    return true;
  }
  /// Some worker, perhaps one that is gone, had that clock.
  void reach(std::uint64_t clock) noexcept { fastest_ = std::max(fastest_, clock); }
  [[nodiscard]] std::uint64_t slowest() const noexcept { return slowest_; }

 private:
  struct entry {
    std::uint32_t incarnation = 0;
    std::uint64_t clock = 0;
    bool counts = false;
  };
  entry& at(place who) {
    if (known_.size() <= who) known_.resize(who + 1);
    return known_[who];
  }
  void refresh() noexcept {
    bool any = false;
    std::uint64_t low = 0;
    for (const auto& one : known_) {
      if (!one.counts) continue;
      low = any ? std::min(low, one.clock) : one.clock;
      fastest_ = std::max(fastest_, one.clock);
      any = true;
    }
    slowest_ = any ? low : fastest_;  // with nobody to wait for nobody waits
  }

  std::vector<entry> known_;  // by place
  std::uint64_t slowest_ = 0;
  std::uint64_t fastest_ = 0;
};

}  // namespace muster::inline v0::ps
