// A copy of all values that an update may read and change, for a second call of the update.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <muster/elastic/state.hpp>
#include <muster/train/arena.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A copy of the gradients of an arena and the parts of a state, including its parameters. Refers to arena and state.
class kept_values {
 public:
  kept_values(arena& tensors, const std::vector<state_part>& parts) : gradients_(tensors.gradients()), parts_(&parts) {
    kept_gradients_.assign(gradients_.begin(), gradients_.end());
    for (const auto& part : parts) kept_.push_back(current(part));
  }

  void restore() const {
    std::ranges::copy(kept_gradients_, gradients_.begin());
    for (std::size_t k = 0; k < kept_.size(); ++k) {
      const auto& part = (*parts_)[k];
      if (!part.load)
        std::ranges::copy(kept_[k], part.bytes.begin());
      else if (part.save() != kept_[k])
        part.load(kept_[k]);
    }
  }
  /// Returns true if the parts have the same values as at construction.
  [[nodiscard]] bool is_same() const {
    for (std::size_t k = 0; k < kept_.size(); ++k) {
      if (current((*parts_)[k]) != kept_[k]) return false;
    }
    return true;
  }

 private:
  static std::vector<std::byte> current(const state_part& part) {
    return part.save ? part.save() : std::vector<std::byte>(part.bytes.begin(), part.bytes.end());
  }

  std::span<float> gradients_;
  const std::vector<state_part>* parts_;
  std::vector<float> kept_gradients_;
  std::vector<std::vector<std::byte>> kept_;  // by part
};

}}}  // namespace muster::v0::detail
