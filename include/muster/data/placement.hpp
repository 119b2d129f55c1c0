// Which machine holds which part of the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::inline v0 {

/// How parts of the data (files, blocks or single records) are spread over machines.
enum class placement_kind : std::uint8_t {
  contiguous,  ///< neighbours together: each machine has one run of parts
  strided,     ///< in turns: neighbours on different machines
  hash         ///< by their number alone: when parts or machines come, few parts move
};

/// How the data is spread over machines; the same at all of them.
struct placement_options {
  placement_kind kind = placement_kind::contiguous;
  /// How much each machine takes, against the others; empty: all the same. Not negative, and not all 0.
  std::vector<double> weights = {};
  /// hash: another one spreads differently.
  std::uint64_t seed = 0;
  /// hash: a machine that would get more than its share by this part of it gives the rest to the next.
  double slack = 0.005;
};

/// Says for each part of the data on which machine it is. A function of the sizes and options alone, the same at every
/// rank, that says where records are read from and nothing of when: the order of an epoch does not depend on it.
///
/// By `hash` a part goes to the machine with the highest score of (seed, part, machine) that has room (Thaler and
/// Ravishankar 1998, https://doi.org/10.1109/90.663936, with the weights of Schindelhauer and Schomaker 2005 and the
/// bounded loads of Mirrokni et al. 2018, https://doi.org/10.1137/1.9781611975031.39): each machine has its share to
/// within `slack`, as far as parts can be cut so, and growing data or another machine moves few parts.
class placement {
 public:
  /// Of parts with so many records each, over `machines`. O(parts * machines) for hash, else O(parts + machines).
  /// Throws configuration_error for no machine, or weights that cannot be.
  placement(std::span<const std::uint64_t> parts, std::size_t machines, placement_options options = {});

  /// The machine that has part `i`, below machines().
  [[nodiscard]] std::size_t machine_of(std::size_t part) const noexcept { return machine_of_[part]; }
  /// The parts of a machine, ascending.
  [[nodiscard]] std::vector<std::size_t> parts_of(std::size_t machine) const;
  /// The records of each machine.
  [[nodiscard]] std::span<const std::uint64_t> records() const noexcept { return records_; }
  [[nodiscard]] std::size_t machines() const noexcept { return records_.size(); }
  /// By how much of its share the fullest machine has more than its share: 0.01 is one in a hundred; 0 without records.
  /// Large parts cannot be spread evenly: the caller should say so when this is more than it accepts.
  [[nodiscard]] double imbalance() const noexcept { return imbalance_; }

  /// Parts that are on another machine than in `before`, of those that both know: what a change would move.
  [[nodiscard]] std::vector<std::size_t> moved_since(const placement& before) const;

 private:
  std::vector<std::size_t> machine_of_;
  std::vector<std::uint64_t> records_;
  double imbalance_ = 0;
};

}  // namespace muster::inline v0
