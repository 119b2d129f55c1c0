#include <muster/train/sync/gossip.hpp>

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>
#include <string>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>

#include "../../comm/group/group_state.hpp"

namespace muster::inline v0 {
namespace {

// Of the messages between neighbours.
constexpr std::uint32_t gossip_tag = first_library_tag;

int remainder(int a, int n) { return ((a % n) + n) % n; }

/// Messages to and from neighbours under the rules of the group: its deadline, its failures.
class gossip_exchange {
 public:
  explicit gossip_exchange(group& ranks)
      : ranks_(ranks), state_(*ranks.state()), until_(deadline_after(ranks.settings().timeout)) {}

  void send(int peer, std::span<const float> values) {
    auto& r = sends_.emplace_back();
    r.data = reinterpret_cast<std::byte*>(const_cast<float*>(values.data()));  // only read
    r.bytes = values.size_bytes();
    r.peer = peer;
    r.tag = gossip_tag;
    ranks_.transport().send(r);
  }

  void receive(int peer, std::span<float> values) {
    request r;
    r.data = reinterpret_cast<std::byte*>(values.data());
    r.bytes = values.size_bytes();
    r.peer = peer;
    r.tag = gossip_tag;
    ranks_.transport().receive(r);
    await(r, peer);
    if (r.received == values.size_bytes()) return;
    throw mismatch_error("the ranks disagree about gossip (this rank has " + std::to_string(values.size_bytes()) +
                         " bytes of weights; rank " + std::to_string(peer) + " sent " + std::to_string(r.received) +
                         "); every rank must train the same model");
  }

  void finish() {
    for (auto& r : sends_) await(r, r.peer);
  }

 private:
  void await(request& r, int peer) {
    while (!ranks_.transport().test(r)) {
      for (auto& sending : sends_) (void)ranks_.transport().test(sending);  // a peer may wait for these
      state_.poll_notices();
      if (state_.failed()) std::rethrow_exception(state_.failure());
      if (clock::now() >= until_)
        throw timeout_error("gossip", ranks_.sequence(), {peer}, ranks_.settings().timeout.count());
      ranks_.transport().pause(std::min(until_, deadline_after(seconds(0.001))));
    }
  }

  group& ranks_;
  detail::group_state& state_;
  clock::time_point until_;
  std::deque<request> sends_;
};

}  // namespace

std::string_view to_string(gossip_graph graph) noexcept {
  constexpr std::string_view names[] = {"ring", "torus", "exponential"};
  return names[static_cast<std::size_t>(graph)];
}

std::vector<int> neighbours(gossip_graph graph, int rank, int world) {
  if (rank < 0 || rank >= world) {
    throw configuration_error("rank " + std::to_string(rank) + " of " + std::to_string(world) +
                              " has no neighbours (ranks count from 0 to world - 1); pass the rank and size of one "
                              "group");
  }
  std::set<int> found;
  switch (graph) {
    case gossip_graph::ring:
      found = {remainder(rank - 1, world), remainder(rank + 1, world)};
      break;
    case gossip_graph::torus: {
      int rows = static_cast<int>(std::sqrt(static_cast<double>(world)));
      while (world % rows != 0) --rows;
      const int columns = world / rows;
      const int row = rank / columns, column = rank % columns;
      found = {row * columns + remainder(column - 1, columns), row * columns + remainder(column + 1, columns),
               remainder(row - 1, rows) * columns + column, remainder(row + 1, rows) * columns + column};
      break;
    }
    case gossip_graph::exponential:
      for (int hop = 1; hop < world; hop *= 2) {
        found.insert(remainder(rank - hop, world));
        found.insert(remainder(rank + hop, world));
      }
      break;
  }
  found.erase(rank);
  return {found.begin(), found.end()};
}

double metropolis_weight(gossip_graph graph, int rank, int neighbour, int world) {
  const auto degree = [&](int of) { return static_cast<double>(neighbours(graph, of, world).size()); };
  return 1.0 / (1.0 + std::max(degree(rank), degree(neighbour)));
}

void gossip(group& ranks, gossip_graph graph, std::span<float> values, std::vector<float>& scratch) {
  const auto others = neighbours(graph, ranks.rank(), ranks.size());
  if (others.empty()) return;
  const scoped_event measured(activity::communication, "gossip", values.size_bytes() * others.size());
  const auto held = ranks.state()->guard();
  ranks.state()->enter();
  scratch.resize(2 * values.size());
  const std::span<float> mixed(scratch.data(), values.size());
  const std::span<float> theirs(scratch.data() + values.size(), values.size());
  try {
    gossip_exchange messages(ranks);
    for (const int peer : others) messages.send(peer, values);
    double own = 1.0;
    for (const int peer : others) own -= metropolis_weight(graph, ranks.rank(), peer, ranks.size());
    for (std::size_t i = 0; i < values.size(); ++i) mixed[i] = static_cast<float>(own) * values[i];
    for (const int peer : others) {  // in one order, so that a run repeats bit for bit
      messages.receive(peer, theirs);
      const auto weight = static_cast<float>(metropolis_weight(graph, ranks.rank(), peer, ranks.size()));
      for (std::size_t i = 0; i < values.size(); ++i) mixed[i] += weight * theirs[i];
    }
    messages.finish();
  } catch (...) {
    ranks.state()->fail(std::current_exception());
    throw;
  }
  std::ranges::copy(mixed, values.begin());
}

double consensus_distance(group& ranks, std::span<const float> values) {
  std::vector<float> mean_values(values.size());
  allreduce(ranks, values, std::span(mean_values), mean);
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double apart = double{values[i]} - double{mean_values[i]};
    squares += apart * apart;
  }
  return std::sqrt(allreduce(ranks, squares, sum) / ranks.size());
}

}  // namespace muster::inline v0
