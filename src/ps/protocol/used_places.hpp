// Which parts of batches the pushes to a range were computed from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../../core/wire.hpp"

namespace muster { inline namespace v0 { namespace ps {

/// The places (`batch_place`) of the pushes that a range had: all below a bound that only grows, and some behind it.
/// O(log n) a push, where they come nearly in order.
class used_places {
 public:
  /// 0 is no place.
  [[nodiscard]] bool has(std::uint64_t place) const noexcept {
    return place != 0 && (place < settled_ || std::ranges::binary_search(all_, place));
  }
  void add(std::uint64_t place, std::uint64_t settled) {
    if (place == 0) return;
    if (settled > settled_) {
      settled_ = settled;
      all_.erase(all_.begin(), std::ranges::lower_bound(all_, settled_));
    }
    const auto at = std::ranges::lower_bound(all_, place);
    if (place >= settled_ && (at == all_.end() || *at != place)) all_.insert(at, place);
  }
  /// Those that are not below the bound.
  [[nodiscard]] const std::vector<std::uint64_t>& behind_bound() const noexcept { return all_; }
  void save(muster::detail::wire_writer& to) const {
    to.add(settled_);
    to.add_all<std::uint64_t>(all_);
  }
  void load(muster::detail::wire_reader& from) {
    settled_ = from.number();
    all_ = from.all<std::uint64_t>();
  }

 private:
  std::uint64_t settled_ = 0;
  std::vector<std::uint64_t> all_;
};

}}}  // namespace muster::v0::ps
