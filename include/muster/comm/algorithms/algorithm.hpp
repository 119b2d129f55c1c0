// The names of the collectives and of the algorithms that carry them out.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster { inline namespace v0 {

/// The collectives. The numbers are part of the signature that ranks compare, so the numbers never change.
enum class collective : std::uint8_t {
  none = 0,  ///< no collective: the kind of a tagged message
  broadcast = 1,
  reduce = 2,
  allreduce = 3,
  allgather = 4,
  reduce_scatter = 5,
  gather = 6,
  scatter = 7,
  all_to_all = 8,
  barrier = 9,
  finish = 10,  ///< the agreement at the end of a run: a rank in it calls no further collective
  scan = 11,
  exclusive_scan = 12
};

/// The way in which messages carry out a collective. Not every collective has every algorithm; docs/collectives.md has
/// the table. Numbers above these are assigned by `register_algorithm`.
enum class algorithm : std::uint8_t {
  automatic = 0,           ///< chosen by size, ranks and transport; the same choice at every rank
  ring = 1,                ///< N-1 steps of 1/N of the data around a ring, twice for allreduce
  tree = 2,                ///< binomial tree
  recursive_doubling = 3,  ///< log2 N steps between ranks 2^k apart; an allreduce sends all data at each step
  halving_doubling = 4,    ///< reduce-scatter by halving, allgather by doubling (Rabenseifner)
  direct = 5,              ///< each rank sends directly to every rank that needs its data
  native = 6,              ///< the transport's own algorithm
  chain = 7                ///< down a line of ranks in chunks, all links at once
};

/// The collectives that users call and that have a choice of algorithms.
inline constexpr collective all_collectives[] = {
    collective::broadcast, collective::reduce,         collective::allreduce,
    collective::allgather, collective::reduce_scatter, collective::gather,
    collective::scatter,   collective::all_to_all,     collective::barrier};

/// The library's algorithms, `automatic` first.
inline constexpr algorithm all_algorithms[] = {
    algorithm::automatic,        algorithm::ring,   algorithm::tree,   algorithm::recursive_doubling,
    algorithm::halving_doubling, algorithm::direct, algorithm::native, algorithm::chain};

namespace detail {
// At namespace scope: inside the functions, each call would construct the table again.
inline constexpr std::string_view collective_names[] = {
    "message", "broadcast",  "reduce",  "allreduce", "allgather", "reduce_scatter", "gather",
    "scatter", "all_to_all", "barrier", "finish",    "scan",      "exclusive_scan"};
inline constexpr std::string_view algorithm_names[] = {
    "auto", "ring", "tree", "recursive_doubling", "halving_doubling", "direct", "native", "chain"};
// Returns the name of a registered algorithm; "unknown algorithm" if there is none with that number.
[[nodiscard]] std::string_view registered_name(std::size_t index) noexcept;
}  // namespace detail

[[nodiscard]] constexpr std::string_view to_string(collective kind) noexcept {
  const auto index = static_cast<std::size_t>(kind);
  return index < std::size(detail::collective_names) ? detail::collective_names[index]
                                                     : std::string_view("unknown collective");
}

[[nodiscard]] inline std::string_view to_string(algorithm name) noexcept {
  const auto index = static_cast<std::size_t>(name);
  return index < std::size(detail::algorithm_names) ? detail::algorithm_names[index] : detail::registered_name(index);
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
