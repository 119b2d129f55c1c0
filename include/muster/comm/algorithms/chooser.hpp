// Which algorithm a collective runs by, when the call does not say: what a rule asks for, else the cheapest under a
// model of the transport's costs.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <muster/comm/algorithms/algorithm.hpp>
#include <muster/comm/algorithms/algorithm_rules.hpp>
#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 {

/// The algorithms a collective has, the default for one or two ranks first.
[[nodiscard]] std::span<const algorithm> algorithms_of(collective kind) noexcept;

/// Seconds the model gives for `kind` over `bytes` (of the whole buffer: what a rank ends with or begins with,
/// whichever is more) among `ranks`: rounds times latency, plus the bytes on the longest path times their costs. Where
/// ranks share cores it is mostly what all messages of all ranks take of these. A transport's own algorithm has no
/// model.
[[nodiscard]] double estimate(collective kind, algorithm how, std::size_t bytes, int ranks,
                              const transport_costs& costs) noexcept;

/// The algorithm with the smallest estimate. A function of its arguments alone, so that all ranks choose alike.
[[nodiscard]] algorithm choose(collective kind, std::size_t bytes, int ranks, const transport_costs& costs) noexcept;

/// What a group chooses, worked out once: for each collective the sizes at which the choice changes. Looking one up is
/// a few comparisons. The same at every rank that has the same rules.
class choices {
 public:
  /// `how` below so many bytes, from where the row before ends; the last row ends at `algorithm_rules::no_limit`.
  struct row {
    std::size_t below = algorithm_rules::no_limit;
    muster::algorithm algorithm = muster::algorithm::automatic;

    bool operator==(const row&) const = default;
  };

  /// Rules come before everything; then `native` for a transport that says `native_first`; then the model. Throws
  /// configuration_error where native is asked for and the transport has none, unless there is one rank, which sends
  /// nothing.
  choices(const transport_abilities& transport, int ranks, const algorithm_rules& rules = {});

  [[nodiscard]] algorithm at(collective kind, std::size_t bytes) const noexcept {
    const row* found = tables_[static_cast<std::size_t>(kind)].data();
    while (bytes >= found->below && found->below != algorithm_rules::no_limit) ++found;
    return found->algorithm;
  }

  /// The whole of it for one collective: one row at least.
  [[nodiscard]] std::span<const row> rows(collective kind) const noexcept {
    return tables_[static_cast<std::size_t>(kind)];
  }

 private:
  std::array<std::vector<row>, static_cast<std::size_t>(collective::finish) + 1> tables_;
};

}}  // namespace muster::v0
