// What ranks exchange, and when: gradients, weights, weights now and then, or weights with neighbours.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <muster/comm/context.hpp>
#include <muster/train/sync/gossip.hpp>

namespace muster { inline namespace v0 {

/// How ranks stay together.
struct sync_mode {
  enum class kind : std::uint8_t {
    allreduce,          ///< gradients are summed before the optimizer's step: every rank takes the same one
    allreduce_weights,  ///< each rank steps by its own gradient, and then the weights are averaged
    local_sgd,        ///< the same, averaged after every `period` steps (Stich 2019, https://arxiv.org/abs/1805.09767)
    gossip,           ///< after each step every rank mixes its weights with those of its neighbours in a graph
    parameter_server  ///< some ranks hold the weights, the others push gradients to them: see <muster/ps/job.hpp>
  };
  kind what = kind::allreduce;
  std::uint64_t period = 1;                 ///< of local_sgd, in steps
  gossip_graph graph = gossip_graph::ring;  ///< of gossip

  friend bool operator==(const sync_mode&, const sync_mode&) = default;
};

/// Reads what `--mode` takes:
///
///     allreduce | allreduce-weights | local-sgd[:STEPS] | gossip[:ring|:torus|:exponential] | ps
///
/// with 8 steps and a ring where nothing is said. Throws configuration_error saying what is wrong and what is known.
[[nodiscard]] sync_mode parse_sync_mode(std::string_view text);
/// The mode of `--mode` / MUSTER_MODE.
[[nodiscard]] sync_mode sync_mode_of(const context& of);
/// As `parse_sync_mode` reads it.
[[nodiscard]] std::string to_string(const sync_mode& mode);

}}  // namespace muster::v0
