#pragma once

#include <muster/train/sync/gossip.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include <muster/comm/group/group_state.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// Tag of the messages between neighbours.
inline constexpr std::uint32_t gossip_tag = first_library_tag;

inline int remainder(int a, int n) { return ((a % n) + n) % n; }

inline request& fill(request& req, int peer, std::span<float> values) {
  req.data = reinterpret_cast<std::byte*>(values.data());
  req.bytes = values.size_bytes();
  req.peer = peer;
  req.tag = gossip_tag;
  return req;
}

}  // namespace detail

MUSTER_INLINE std::string_view to_string(gossip_graph graph) noexcept {
  constexpr std::string_view names[] = {"ring", "torus", "exponential"};
  return names[static_cast<std::size_t>(graph)];
}

MUSTER_INLINE std::vector<int> neighbours(gossip_graph graph, int rank, int world) {
  if (rank < 0 || rank >= world) {
    throw configuration_error("rank " + std::to_string(rank) + " of " + std::to_string(world) +
                              " has no neighbours (ranks count from 0 to world - 1); pass a group's rank and "
                              "size");
  }
  std::set<int> found;
  switch (graph) {
    case gossip_graph::ring:
      found = {detail::remainder(rank - 1, world), detail::remainder(rank + 1, world)};
      break;
    case gossip_graph::torus: {
      int rows = static_cast<int>(std::sqrt(static_cast<double>(world)));
      while (world % rows != 0) --rows;
      const int columns = world / rows;
      const int row = rank / columns, column = rank % columns;
      found = {row * columns + detail::remainder(column - 1, columns),
               row * columns + detail::remainder(column + 1, columns),
               detail::remainder(row - 1, rows) * columns + column,
               detail::remainder(row + 1, rows) * columns + column};
      break;
    }
    case gossip_graph::exponential:
      for (int hop = 1; hop < world; hop *= 2) {
        found.insert(detail::remainder(rank - hop, world));
        found.insert(detail::remainder(rank + hop, world));
      }
      break;
  }
  found.erase(rank);
  return {found.begin(), found.end()};
}

MUSTER_INLINE void gossip(group& ranks, gossip_graph graph, std::span<float> values, std::vector<float>& scratch) {
  const auto peers = neighbours(graph, ranks.rank(), ranks.size());
  if (peers.empty()) return;
  const scoped_event measured(activity::communication, "gossip", values.size_bytes() * peers.size());
  auto& state = *ranks.state();
  auto& transport = ranks.transport();
  const auto lock = state.guard();
  state.check_before_call();
  const auto deadline = deadline_after(ranks.settings().timeout);
  scratch.resize(2 * values.size());
  const std::span<float> mixed(scratch.data(), values.size());
  const std::span<float> theirs(scratch.data() + values.size(), values.size());
  std::vector<request> sends(peers.size());
  const auto await = [&](request& req) {
    while (!transport.test(req)) {
      for (auto& sending : sends) (void)transport.test(sending);  // a peer may be waiting for these messages
      state.handle_control_messages();
      if (state.failed()) std::rethrow_exception(state.failure());
      if (clock::now() >= deadline)
        throw timeout_error("gossip", ranks.sequence(), {req.peer}, ranks.settings().timeout.count());
      transport.pause(std::min(deadline, deadline_after(seconds(0.001))));
    }
  };
  try {
    for (std::size_t k = 0; k < peers.size(); ++k) transport.send(detail::fill(sends[k], peers[k], values));
    const auto weight = 1.0 / (1.0 + static_cast<double>(peers.size()));
    const auto own = static_cast<float>(1.0 - weight * static_cast<double>(peers.size()));
    for (std::size_t i = 0; i < values.size(); ++i) mixed[i] = own * values[i];
    for (const int peer : peers) {  // in a fixed order, so that a run repeats bit for bit
      request req;
      transport.receive(detail::fill(req, peer, theirs));
      await(req);
      if (req.received != theirs.size_bytes()) {
        throw mismatch_error("the ranks disagree about gossip (this rank has " + std::to_string(theirs.size_bytes()) +
                             " bytes of weights; rank " + std::to_string(peer) + " sent " +
                             std::to_string(req.received) + "); every rank must train the same model");
      }
      for (std::size_t i = 0; i < values.size(); ++i) mixed[i] += static_cast<float>(weight) * theirs[i];
    }
    for (auto& sending : sends) await(sending);
  } catch (...) {
    state.fail(std::current_exception());
    throw;
  }
  std::ranges::copy(mixed, values.begin());
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
