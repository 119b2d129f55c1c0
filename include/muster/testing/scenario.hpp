// Random cases of collectives, as functions of (seed, ranks, index) alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <muster/comm/algorithms/chooser.hpp>
#include <muster/comm/group.hpp>
#include <muster/comm/reduction.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

namespace muster { inline namespace v0 { namespace testing {

/// A call of a collective on random values, with all parameters that may affect its execution; the same at every rank.
struct scenario {
  std::uint64_t seed = 0;  ///< seed of the values
  collective kind = collective::allreduce;
  muster::algorithm algorithm = muster::algorithm::automatic;
  dtype type = dtype::float32;
  operation op = operation::sum;
  std::size_t count = 0;
  int root = 0;
  bool in_place = false;
  bool async = false;
  int misaligned = 0;                ///< elements by which the buffers are misaligned
  std::uint32_t registered_in = 0;   ///< bit r modulo 32: rank r's input is registered memory
  std::uint32_t registered_out = 0;  ///< bit r modulo 32: rank r's output is registered memory
  bool delays = false;               ///< true if some ranks make the call late

  /// Returns a line with which a failure can be repeated.
  [[nodiscard]] std::string describe(int rank_count) const;
};

/// The choices for random cases.
struct draw_options {
  std::vector<collective> kinds{std::begin(all_collectives), std::end(all_collectives)};
  std::vector<algorithm> algorithms{};               // empty: all algorithms of the collective
  std::size_t usual_bytes = std::size_t{128} << 10;  // maximum size of a rank's larger buffer
  std::size_t rare_bytes = std::size_t{8} << 20;     // maximum size in a few of a thousand cases
  bool native = false;                               // includes the transport's own algorithms
};

/// The cases of a run. Each case is a function of (seed, ranks, index) alone, so that it can be run separately.
struct case_list {
  std::uint64_t seed = 20261121;
  std::uint64_t first = 0;  ///< index of the first case
  std::uint64_t count = 0;  ///< number of cases
};

namespace detail {

inline bool has_bit(std::uint32_t mask, int rank) { return (mask >> rank % 32 & 1) != 0; }

inline std::string bits(std::uint32_t mask, int rank_count) {
  std::vector<int> list;
  for (int r = 0; r < rank_count; ++r) {
    if (has_bit(mask, r)) list.push_back(r);
  }
  if (list.empty()) return "private";
  return std::ssize(list) == rank_count ? "registered" : "registered at " + format_ranks(list);
}

}  // namespace detail

inline std::string scenario::describe(int rank_count) const {
  std::ostringstream text;
  text << to_string(kind) << " by " << to_string(algorithm) << ", " << rank_count << " ranks, " << count << ' '
       << to_string(type) << ' ' << to_string(op) << ", root " << root << (in_place ? ", in place" : "")
       << (async ? ", async" : "") << ", off by " << misaligned << ", input " << detail::bits(registered_in, rank_count)
       << ", output " << detail::bits(registered_out, rank_count) << ", values of seed " << seed;
  return text.str();
}

/// Returns a random case for a group of `rank_count`. Draws the same numbers at every rank.
inline scenario draw(random_stream& random, int rank_count, const draw_options& choices) {
  scenario s;
  s.seed = random();
  s.kind = choices.kinds[random.below(choices.kinds.size())];
  if (random.below(3) == 0 && std::ranges::find(choices.kinds, collective::allreduce) != choices.kinds.end())
    s.kind = collective::allreduce;
  auto algorithms = choices.algorithms.empty() ? std::vector<algorithm>{algorithm::automatic} : choices.algorithms;
  for (const auto candidate : algorithms_of(s.kind)) {
    if (choices.algorithms.empty() && (candidate != algorithm::native || choices.native))
      algorithms.push_back(candidate);
  }
  s.algorithm = algorithms[random.below(algorithms.size())];
  if (choices.native && choices.algorithms.empty() && random.below(3) == 0) s.algorithm = algorithm::automatic;
  s.type = static_cast<dtype>(1 + random.below(14));
  s.op = static_cast<operation>(1 + random.below(6));
  if (s.type == dtype::boolean && s.op == operation::mean) s.op = operation::sum;

  const auto n = static_cast<std::size_t>(rank_count);
  const bool one_each =
      s.kind == collective::gather || s.kind == collective::scatter || s.kind == collective::all_to_all;
  const std::size_t largest =
      (random.below(300) == 0 ? choices.rare_bytes : choices.usual_bytes) / size_of(s.type) / (one_each ? n : 1);
  constexpr std::size_t primes[] = {2, 3, 5, 7, 11, 13, 127, 1009, 8191};
  const std::size_t counts[] = {
      random.below(3),
      primes[random.below(std::size(primes))],
      n * random.below(40),
      n * random.below(40) + 1,
      random.below(300),
      static_cast<std::size_t>(std::exp(random.uniform() * std::log(static_cast<double>(largest))))};
  s.count = counts[random.below(std::size(counts))];
  if (largest > choices.usual_bytes) s.count = largest - random.below(largest / 2);
  s.root = static_cast<int>(random.below(n));
  s.in_place = random.below(2) == 0;
  s.async = random.below(3) == 0;
  s.misaligned = static_cast<int>(random.below(4));
  constexpr std::uint32_t all = ~0u;
  const auto some = static_cast<std::uint32_t>(random());
  if (const auto where = random.below(8); where == 2) {  // only one of input and output is registered
    (random.below(2) == 0 ? s.registered_in : s.registered_out) = all;
  } else if (where == 3) {  // at some ranks
    s.registered_in = some;
    s.registered_out = some >> 16;
  } else if (where > 3) {
    s.registered_in = s.registered_out = all;
  }
  s.delays = random.below(16) == 0;
  return s;
}

}}}  // namespace muster::v0::testing

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
