// How private data travels: measured now and then, since it depends on where the cores of the host lie.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <muster/comm/algorithm.hpp>

namespace muster::inline v0::detail {

/// Chooses between two ways that give the same bits: `laid_out` (the owner copies into shared memory, others read
/// there) and `pulled` (the system reads the owner's memory). Which is faster is a matter of the collective, its size
/// and of whether the ranks share a cache, which on a virtual machine changes as it runs: a difference of three times
/// in either direction has been seen. One rank chooses and all follow, so that nothing has to be agreed on.
class way_chooser {
 public:
  struct decision {
    bool pulls = false;
    bool measured = false;  // `learn` wants to know how long it took
  };

  [[nodiscard]] decision choose(collective kind, std::size_t bytes) noexcept {
    auto& known = class_of(kind, bytes);
    const std::uint64_t turn = known.turns++;
    const bool better = known.seconds[1] < known.seconds[0];
    if (turn < first_looks) return {turn % 2 == 1, true};
    if (turn % between_looks == 0) return {better, true};
    if (turn % between_looks == between_looks / 2) return {!better, true};
    return {better, false};
  }

  void learn(collective kind, std::size_t bytes, bool pulls, double seconds) noexcept {
    // The fastest of late: what else runs on the host only ever makes it slower.
    auto& known = class_of(kind, bytes).seconds[pulls ? 1 : 0];
    known = std::min(seconds, known * forgets);
  }

 private:
  static constexpr std::uint64_t first_looks = 4;
  static constexpr std::uint64_t between_looks = 64;
  static constexpr double forgets = 1.25;

  struct size_class {
    std::uint64_t turns = 0;
    double seconds[2] = {1e9, 1e9};  // laid out, pulled
  };
  static constexpr std::size_t sizes = 48;
  size_class& class_of(collective kind, std::size_t bytes) noexcept {
    const auto width = static_cast<std::size_t>(std::bit_width(bytes));
    return classes_[static_cast<std::size_t>(kind)][std::min(width, sizes - 1)];
  }

  std::array<std::array<size_class, sizes>, static_cast<std::size_t>(collective::finish) + 1> classes_;
};

}  // namespace muster::inline v0::detail
