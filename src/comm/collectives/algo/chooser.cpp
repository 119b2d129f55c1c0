#include <muster/comm/collectives/algo/chooser.hpp>

#include <algorithm>
#include <bit>

#include <muster/comm/collectives/algo/chain.hpp>

namespace muster::inline v0 {

std::span<const algorithm> algorithms_of(collective kind) noexcept {
  using enum algorithm;
  static constexpr algorithm broadcast[] = {tree, chain, native};
  static constexpr algorithm reduce[] = {tree, native};
  static constexpr algorithm allreduce[] = {recursive_doubling, halving_doubling, ring, tree, native};
  static constexpr algorithm allgather[] = {recursive_doubling, ring, native};
  static constexpr algorithm reduce_scatter[] = {direct, ring, native};
  static constexpr algorithm rooted[] = {tree, direct, native};
  static constexpr algorithm all_to_all[] = {direct, native};
  static constexpr algorithm barrier[] = {recursive_doubling, native};
  switch (kind) {
    case collective::broadcast:
      return broadcast;
    case collective::reduce:
      return reduce;
    case collective::allreduce:
      return allreduce;
    case collective::allgather:
      return allgather;
    case collective::reduce_scatter:
      return reduce_scatter;
    case collective::gather:
    case collective::scatter:
      return rooted;
    case collective::all_to_all:
      return all_to_all;
    case collective::barrier:
      return barrier;
    case collective::finish:
      return {barrier, 1};
    case collective::none:
      break;
  }
  return {};
}

double estimate(collective kind, algorithm how, std::size_t bytes, int ranks, const transport_costs& costs) noexcept {
  const double n = ranks;
  const double all = static_cast<double>(bytes);
  const double share = all * (n - 1) / n;  // what a rank must get or give in the least
  const double rounds = std::bit_width(static_cast<unsigned>(ranks > 1 ? ranks - 1 : 0));  // ceil(log2 n)
  const bool folded = !std::has_single_bit(static_cast<unsigned>(ranks));
  const double a = costs.latency;
  const double b = costs.per_byte;
  const double c = costs.reduce_per_byte;
  const double fold = folded ? 2 * a + all * (2 * b + c) : 0.0;
  const double halvings = folded ? rounds - 1 : rounds;

  if (kind == collective::allreduce) {
    switch (how) {
      case algorithm::recursive_doubling:
        return fold + halvings * (a + all * (b + c));
      case algorithm::halving_doubling:
        return fold + 2 * halvings * a + share * (2 * b + c);
      case algorithm::ring:
        return 2 * (n - 1) * a + share * (2 * b + c);
      case algorithm::tree:
        return rounds * (2 * a + all * (2 * b + c));
      default:
        break;
    }
  }
  switch (how) {
    case algorithm::ring:
      return (n - 1) * a + share * (b + (kind == collective::reduce_scatter ? 2 * c : 0.0));
    case algorithm::direct:
      return (n - 1) * a + share * (b + (kind == collective::reduce_scatter ? c : 0.0));
    case algorithm::recursive_doubling:
      return 2 * rounds * a + share * b;
    case algorithm::tree:
      // Gather and scatter move a half, a quarter ... of the whole along the longest path; the root copies it once
      // more.
      if (kind == collective::gather || kind == collective::scatter) return rounds * a + share * 2 * b;
      return rounds * (a + all * (b + (kind == collective::reduce ? c : 0.0)));
    case algorithm::chain: {
      // Chunks are counted in parts: a model with steps would change its mind at every one of them.
      const double chunk = std::min(all, static_cast<double>(detail::chain_chunk));
      const double chunks = std::max(1.0, all / static_cast<double>(detail::chain_chunk));
      return (n - 2 + chunks) * (a + chunk * b);
    }
    default:
      return 0.0;
  }
}

algorithm choose(collective kind, std::size_t bytes, int ranks, const transport_costs& costs) noexcept {
  algorithm best = algorithm::automatic;
  double best_time = 0;
  for (const algorithm candidate : algorithms_of(kind)) {
    if (candidate == algorithm::native) continue;
    const double time = estimate(kind, candidate, bytes, ranks, costs);
    if (best == algorithm::automatic || time < best_time) {
      best = candidate;
      best_time = time;
    }
  }
  return best;
}

}  // namespace muster::inline v0
