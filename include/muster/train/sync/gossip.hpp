// Decentralised averaging: each rank mixes with its neighbours in a graph, and none with all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <muster/comm/group.hpp>

namespace muster::inline v0 {

/// Which ranks are neighbours; all graphs are undirected and look the same from every rank.
enum class gossip_graph : std::uint8_t {
  ring,        ///< r - 1 and r + 1
  torus,       ///< left, right, up and down on a grid that is as square as the number of ranks allows
  exponential  ///< r - 2^k and r + 2^k for all k (static exponential graph: Ying et al. 2021,
               ///< https://arxiv.org/abs/2110.13363)
};

/// "ring" and so on.
[[nodiscard]] std::string_view to_string(gossip_graph graph) noexcept;

/// The neighbours of a rank, ascending, without itself. Throws configuration_error unless 0 <= rank < world.
[[nodiscard]] std::vector<int> neighbours(gossip_graph graph, int rank, int world);

/// The weight of what comes from `neighbour` in what `rank` holds afterwards, 1 / (1 + max of both degrees); the rest
/// of 1 is that of its own (Metropolis-Hastings weights: Xiao and Boyd 2004,
/// https://doi.org/10.1016/j.sysconle.2004.02.022). So the mean over all ranks stays as it is.
[[nodiscard]] double metropolis_weight(gossip_graph graph, int rank, int neighbour, int world);

/// Collective: `values` becomes the weighted mean of those of this rank and its neighbours; the same length at each.
/// Sends them to each neighbour once. Changes nothing when it throws timeout_error, peer_failure or mismatch_error.
/// No collective of the group may be under way. `scratch` holds memory from call to call.
void gossip(group& ranks, gossip_graph graph, std::span<float> values, std::vector<float>& scratch);

/// Collective: how far the ranks are apart, sqrt(sum over ranks of |values - mean|^2 / ranks); 0 when all hold the
/// same. The same at every rank.
[[nodiscard]] double consensus_distance(group& ranks, std::span<const float> values);

}  // namespace muster::inline v0
