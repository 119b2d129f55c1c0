// The data that ranks exchange: gradients, weights after each step, weights after several steps, or weights with
// neighbours.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <muster/comm/context.hpp>
#include <muster/train/sync/gossip.hpp>

namespace muster { inline namespace v0 {

/// The method that keeps the ranks' models consistent.
struct sync_mode {
  enum class kind : std::uint8_t {
    allreduce,          ///< ranks sum gradients before the optimizer's step, so every rank performs the same step
    allreduce_weights,  ///< each rank steps with its own gradient, then the ranks average their weights
    local_sgd,        ///< as above, averaged after every `period` steps (Stich 2019, https://arxiv.org/abs/1805.09767)
    gossip,           ///< after each step every rank averages its weights with its neighbours in a graph
    parameter_server  ///< some ranks hold the weights, the others push gradients to them: see <muster/ps/job.hpp>
  };
  kind method = kind::allreduce;
  std::uint64_t period = 1;                 ///< steps between averages, for local_sgd
  gossip_graph graph = gossip_graph::ring;  ///< graph of neighbours, for gossip

  friend bool operator==(const sync_mode&, const sync_mode&) = default;
};

/// Parses a value of `--mode`:
///
///     allreduce | allreduce-weights | local-sgd[:STEPS] | gossip[:ring|:torus|:exponential] | ps
///
/// The defaults are 8 steps and a ring. Throws configuration_error with the mistake and the known modes.
[[nodiscard]] sync_mode parse_sync_mode(std::string_view text);
/// Returns the mode of `--mode` or MUSTER_MODE.
[[nodiscard]] sync_mode sync_mode_of(const context& ctx);
/// Returns the mode as a text that `parse_sync_mode` reads.
[[nodiscard]] std::string to_string(const sync_mode& mode);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
