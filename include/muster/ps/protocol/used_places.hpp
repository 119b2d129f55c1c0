// The parts of batches from which the pushes to a range were computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// The set of places (`batch_place`) of the pushes that a range has applied: all places below a growing bound, and some
/// above it. O(log n) for each push if places arrive nearly in order.
class used_places {
 public:
  /// Returns true if the place was used. 0 is no place.
  [[nodiscard]] bool has(std::uint64_t place) const noexcept {
    return place != 0 && (place < settled_ || std::ranges::binary_search(above_bound_, place));
  }
  void add(std::uint64_t place, std::uint64_t settled) {
    if (place == 0) return;
    if (settled > settled_) {
      settled_ = settled;
      above_bound_.erase(above_bound_.begin(), std::ranges::lower_bound(above_bound_, settled_));
    }
    const auto at = std::ranges::lower_bound(above_bound_, place);
    if (place >= settled_ && (at == above_bound_.end() || *at != place)) above_bound_.insert(at, place);
  }
  /// Returns the used places that are not below the bound.
  [[nodiscard]] const std::vector<std::uint64_t>& above_bound() const noexcept { return above_bound_; }
  void save(muster::detail::wire_writer& writer) const {
    writer.add(settled_);
    writer.add_all<std::uint64_t>(above_bound_);
  }
  void load(muster::detail::wire_reader& reader) {
    settled_ = reader.number();
    above_bound_ = reader.all<std::uint64_t>();
  }

 private:
  std::uint64_t settled_ = 0;
  std::vector<std::uint64_t> above_bound_;
};

}}}  // namespace muster::v0::ps
