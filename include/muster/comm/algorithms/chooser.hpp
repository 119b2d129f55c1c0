// The choice of a collective's algorithm when the call does not name one: the algorithm of a rule, else the algorithm
// with the lowest cost under a model of the transport.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <muster/comm/algorithms/algorithm.hpp>
#include <muster/comm/algorithms/algorithm_rules.hpp>
#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 {

/// Returns the algorithms of a collective, including native and registered algorithms. Among equal estimates, `choose`
/// returns the first.
[[nodiscard]] std::span<const algorithm> algorithms_of(collective kind) noexcept;

/// Returns the seconds that the model predicts for `kind` over `bytes` among `rank_count`. `bytes` is the size of the
/// whole buffer, input or output, whichever is larger. The prediction is the number of rounds times the latency, plus
/// the bytes on the longest path times their costs. If ranks share cores, the time is mostly the sum over all messages
/// of all ranks. Native and registered algorithms have no model, and their result has no meaning.
[[nodiscard]] double estimate(collective kind, algorithm name, std::size_t bytes, int rank_count,
                              const transport_costs& costs) noexcept;

/// Returns the library's algorithm with the smallest estimate; never a native or registered algorithm. The result
/// depends on the arguments alone, so that all ranks choose alike.
[[nodiscard]] algorithm choose(collective kind, std::size_t bytes, int rank_count,
                               const transport_costs& costs) noexcept;

/// A group's choice of algorithms, computed once: for each collective the sizes at which the choice changes. A lookup
/// takes a few comparisons. The same at every rank that has the same rules and the same transport abilities.
class algorithm_selector {
 public:
  /// An algorithm for the sizes below `below`, from the end of the previous row. The last row ends at
  /// `algorithm_rules::no_limit`.
  struct row {
    std::size_t below = algorithm_rules::no_limit;
    muster::algorithm algorithm = muster::algorithm::automatic;

    bool operator==(const row&) const = default;
  };

  /// Rules have priority, then `native` for a transport with `prefers_native`, then the model. Throws
  /// configuration_error when a rule requests native and the transport has no native collectives, unless there is a
  /// single rank, which sends nothing.
  algorithm_selector(const transport_abilities& transport, int rank_count, const algorithm_rules& rules = {});

  /// Returns the algorithm for a whole buffer of `bytes` bytes.
  [[nodiscard]] algorithm algorithm_for(collective kind, std::size_t bytes) const noexcept {
    const row* found = tables_[static_cast<std::size_t>(kind)].data();
    while (bytes >= found->below && found->below != algorithm_rules::no_limit) ++found;
    return found->algorithm;
  }

  /// Returns all rows of a collective, at least one.
  [[nodiscard]] std::span<const row> rows(collective kind) const noexcept {
    return tables_[static_cast<std::size_t>(kind)];
  }

 private:
  std::array<std::vector<row>, static_cast<std::size_t>(collective::exclusive_scan) + 1> tables_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
