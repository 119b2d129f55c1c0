// Decentralised averaging: each rank mixes with its neighbours in a graph, and none with all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <muster/comm/group.hpp>

namespace muster { inline namespace v0 {

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

/// Collective: `values` becomes the mean of those of this rank and its neighbours; the same length at each. As every
/// rank has as many neighbours these are Metropolis-Hastings weights (Xiao and Boyd 2004,
/// https://doi.org/10.1016/j.sysconle.2004.02.022), and the mean over all ranks stays as it is. Sends them to each
/// neighbour once. Changes nothing when it throws timeout_error, peer_failure or mismatch_error.
/// No collective of the group may be under way. `scratch` holds memory from call to call.
void gossip(group& ranks, gossip_graph graph, std::span<float> values, std::vector<float>& scratch);

}}  // namespace muster::v0
