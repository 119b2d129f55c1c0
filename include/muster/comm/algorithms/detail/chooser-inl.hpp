#pragma once

#include <muster/comm/algorithms/chooser.hpp>

#include <algorithm>
#include <bit>

#include <muster/comm/algorithms/chain.hpp>
#include <muster/comm/algorithms/registry.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

namespace detail {

// Returns the time of the longest path from the first call to the last return, if every rank has a core.
inline double time_of_path(collective kind, algorithm name, std::size_t bytes, int rank_count,
                           const transport_costs& costs) noexcept {
  const double n = rank_count;
  const double all = static_cast<double>(bytes);
  const double share = all * (n - 1) / n;  // minimum of data that a rank must receive or send
  const double rounds = std::bit_width(static_cast<unsigned>(rank_count > 1 ? rank_count - 1 : 0));  // ceil(log2 n)
  const bool folded = !std::has_single_bit(static_cast<unsigned>(rank_count));
  const double a = costs.latency;
  const double b = costs.per_byte;
  const double c = costs.reduce_per_byte;
  const double fold = folded ? 2 * a + all * (2 * b + c) : 0.0;
  const double halvings = folded ? rounds - 1 : rounds;

  if (kind == collective::allreduce) {
    switch (name) {
      case algorithm::recursive_doubling:
        return fold + halvings * (a + all * (b + c));
      case algorithm::halving_doubling:
        return fold + 2 * halvings * a + share * (2 * b + c);
      case algorithm::ring:
        return 2 * (n - 1) * a + share * (2 * b + c);
      case algorithm::direct:  // two messages to each rank, all outstanding at once
        return 2 * (1 + (n - 2) * costs.next_message) * a + share * (2 * b + c);
      case algorithm::tree:
        return rounds * (2 * a + all * (2 * b + c));
      default:
        break;
    }
  }
  switch (name) {
    case algorithm::ring:
      return (n - 1) * a + share * (b + (kind == collective::reduce_scatter ? 2 * c : 0.0));
    case algorithm::direct:
      return (n - 1) * a + share * (b + (kind == collective::reduce_scatter ? c : 0.0));
    case algorithm::recursive_doubling:
      return 2 * rounds * a + share * b;
    case algorithm::tree:
      // Gather and scatter move a half, a quarter ... of the data along the longest path; the root copies the data once
      // more.
      if (kind == collective::gather || kind == collective::scatter) return rounds * a + share * 2 * b;
      return rounds * (a + all * (b + (kind == collective::reduce ? c : 0.0)));
    case algorithm::chain: {
      // Chunks are counted in fractions: in a model with steps the cheapest algorithm would change at every chunk.
      const double chunk = std::min(all, static_cast<double>(detail::chain_chunk));
      const double chunks = std::max(1.0, all / static_cast<double>(detail::chain_chunk));
      return (n - 2 + chunks) * (a + chunk * b);
    }
    default:
      return 0.0;
  }
}

// The traffic that all ranks cause together.
struct traffic {
  double messages = 0;
  double bytes = 0;
  double combined_bytes = 0;  // bytes that are combined
};

inline traffic traffic_of(collective kind, algorithm name, std::size_t bytes, int rank_count) noexcept {
  const double n = rank_count;
  const double all = static_cast<double>(bytes);
  const double least_bytes = (n - 1) * all;  // minimum of data that must reach all ranks, or leave all ranks
  const double pairs = n * (n - 1);
  if (kind == collective::allreduce) {
    const double power = std::bit_floor(static_cast<unsigned>(rank_count));
    const double halvings = std::bit_width(static_cast<unsigned>(rank_count)) - 1;
    const double folds = 2 * (n - power);
    switch (name) {
      case algorithm::recursive_doubling: {
        const double messages = power * halvings + folds;
        return {messages, messages * all, (messages - folds / 2) * all};
      }
      case algorithm::halving_doubling:
        return {2 * power * halvings + folds, 2 * (power - 1) * all + folds * all, least_bytes};
      case algorithm::tree:
        return {2 * (n - 1), 2 * least_bytes, least_bytes};
      default:  // ring, direct
        return {2 * pairs, 2 * least_bytes, least_bytes};
    }
  }
  const bool combines = kind == collective::reduce || kind == collective::reduce_scatter;
  const double combined = combines ? least_bytes : 0.0;
  const double rounds = std::bit_width(static_cast<unsigned>(rank_count > 1 ? rank_count - 1 : 0));
  const bool rooted = kind == collective::gather || kind == collective::scatter;
  switch (name) {
    case algorithm::tree:
      return {n - 1, rooted ? rounds * all / 2 : least_bytes, combined};
    case algorithm::chain:
      return {(n - 1) * std::max(1.0, all / static_cast<double>(detail::chain_chunk)), least_bytes, combined};
    case algorithm::recursive_doubling:
      return {2 * rounds * n, least_bytes, combined};
    default:  // ring, direct
      return rooted ? traffic{n - 1, all, combined} : traffic{pairs, least_bytes, combined};
  }
}

}  // namespace detail

MUSTER_INLINE double estimate(collective kind, algorithm name, std::size_t bytes, int rank_count,
                              const transport_costs& costs) noexcept {
  const double path = detail::time_of_path(kind, name, bytes, rank_count, costs);
  if (costs.ranks_a_core <= 1) return path;
  // Where ranks share cores, the time depends less on the longest path of messages than on the work of all ranks. The
  // weight of the path was measured with four ranks on two cores over tcp, from 4 bytes to 16 MiB. The estimate stays
  // linear in the bytes, as `bisect` requires.
  constexpr double path_weight = 0.25;
  const detail::traffic total = detail::traffic_of(kind, name, bytes, rank_count);
  const double work =
      total.messages * costs.latency + total.bytes * costs.per_byte + total.combined_bytes * costs.reduce_per_byte;
  return path_weight * path + (1 - path_weight) * work * costs.ranks_a_core / rank_count;
}

MUSTER_INLINE algorithm choose(collective kind, std::size_t bytes, int rank_count,
                               const transport_costs& costs) noexcept {
  algorithm best = algorithm::automatic;
  double best_time = 0;
  for (const algorithm candidate : algorithms_of(kind)) {
    if (candidate == algorithm::native || detail::registered_body(kind, candidate) != nullptr) continue;
    const double time = estimate(kind, candidate, bytes, rank_count, costs);
    if (best == algorithm::automatic || time < best_time) {
      best = candidate;
      best_time = time;
    }
  }
  return best;
}

namespace detail {

using selector_rows = std::vector<algorithm_selector::row>;

// Above this size the model's choice does not change any more; the value is exact as a double.
inline constexpr std::size_t largest_modelled = std::size_t{1} << 48;

// Appends the choice at each size from `low` to below `high`. Under the model each algorithm's time is linear in the
// size (for the chain from one chunk on, and a tree is as cheap below that), so each algorithm is the cheapest in one
// interval at most: if both ends have the same choice, all sizes between have that choice too.
template <class Choose>
void bisect(selector_rows& rows, std::size_t low, std::size_t high, const Choose& chosen_at) {
  const algorithm name = chosen_at(low);
  if (name != chosen_at(high - 1)) {
    const std::size_t middle = low + (high - low) / 2;
    bisect(rows, low, middle, chosen_at);
    bisect(rows, middle, high, chosen_at);
  } else if (!rows.empty() && rows.back().algorithm == name) {
    rows.back().below = high;
  } else {
    rows.push_back({high, name});
  }
}

}  // namespace detail

MUSTER_INLINE algorithm_selector::algorithm_selector(const transport_abilities& transport, int rank_count,
                                                     const algorithm_rules& rules) {
  const bool with_native = transport.native_collectives;
  std::vector<std::size_t> ends{algorithm_rules::no_limit};  // ends of the intervals of sizes that have the same rule
  for (const auto& rule : rules.rules()) {
    if (rule.algorithm == algorithm::native && !with_native && rank_count > 1) {
      throw configuration_error("the algorithm rule '" + to_string(rule) + "' asks for native (transport " +
                                std::string(transport.name) +
                                " has no collectives of its own); choose another algorithm, or another transport");
    }
    ends.insert(ends.end(), {rule.low, rule.high});
  }
  std::sort(ends.begin(), ends.end());
  tables_.fill({row{}});
  for (std::size_t i = 1; i < tables_.size(); ++i) {
    const auto kind = static_cast<collective>(i);
    const auto chosen_at = [&](std::size_t bytes) {
      const algorithm requested = rules.algorithm_for(kind, bytes);
      if (requested != algorithm::automatic && (requested != algorithm::native || with_native)) return requested;
      if (transport.prefers_native && with_native && kind <= collective::finish) return algorithm::native;
      return choose(kind, std::min(bytes, detail::largest_modelled), rank_count, transport.costs);
    };
    tables_[i].clear();
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      if (end > begin) detail::bisect(tables_[i], begin, end, chosen_at);
      begin = end;
    }
  }
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
