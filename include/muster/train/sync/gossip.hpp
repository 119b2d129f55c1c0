// Decentralised averaging: each rank averages with its neighbours in a graph only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <muster/comm/group.hpp>

namespace muster { inline namespace v0 {

/// The graphs that define which ranks are neighbours. All graphs are undirected and vertex-transitive.
enum class gossip_graph : std::uint8_t {
  ring,        ///< r - 1 and r + 1
  torus,       ///< left, right, up and down on a grid that is as square as the number of ranks allows
  exponential  ///< r - 2^k and r + 2^k for all k (static exponential graph: Ying et al. 2021,
               ///< https://arxiv.org/abs/2110.13363)
};

/// Returns the name of a graph, such as "ring".
[[nodiscard]] std::string_view to_string(gossip_graph graph) noexcept;

/// Returns the neighbours of a rank, ascending, without the rank itself. Throws configuration_error unless 0 <= rank <
/// world.
[[nodiscard]] std::vector<int> neighbours(gossip_graph graph, int rank, int world);

/// Replaces `values` by the mean over this rank and its neighbours. Collective; the length must be the same at each
/// rank. All ranks have the same number of neighbours, so these are Metropolis-Hastings weights (Xiao and Boyd 2004,
/// https://doi.org/10.1016/j.sysconle.2004.02.022), and the mean over all ranks does not change. Each rank sends its
/// values once to each neighbour. When it throws timeout_error, peer_failure or mismatch_error, `values` are unchanged
/// and the group has failed. No other collective of the group may be in progress. `scratch` keeps its memory between
/// calls.
void gossip(group& ranks, gossip_graph graph, std::span<float> values, std::vector<float>& scratch);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
