#pragma once

#include <muster/comm/algorithms/calibrate.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include <muster/comm/algorithms/chooser.hpp>
#include <muster/comm/block.hpp>
#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/reduce.hpp>
#include <muster/comm/collectives/reduce_scatter.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline constexpr collective measured_collectives[] = {collective::allreduce,      collective::broadcast,
                                                      collective::reduce,         collective::allgather,
                                                      collective::reduce_scatter, collective::all_to_all};
inline constexpr std::size_t smallest_measured = 64;
inline constexpr std::size_t largest_measured = std::size_t{16} << 20;
inline constexpr std::size_t measured_rounds = 5;

// Returns the number of calls that take `round_time` together, from 3 to 100: no size takes long, even if ranks wait
// for a core, and no size has a single call.
inline std::size_t calls_in_a_round(double seconds_a_call) {
  constexpr double round_time = 4e-3;
  return static_cast<std::size_t>(std::clamp(round_time / std::max(seconds_a_call, 1e-9), 3.0, 100.0));
}

// The buffers for all calls; each size uses a part.
struct memory {
  buffer<float> in;
  buffer<float> out;
};

inline void call_once(group& world, memory& buffers, collective kind, std::size_t count, algorithm name) {
  const auto input = buffers.in.span().first(count);
  const auto result = buffers.out.span().first(count);
  const auto mine = block_of(count, world.rank(), world.size()).count;
  const collective_options call_options{.algorithm = name};
  switch (kind) {
    case collective::allreduce:
      return allreduce(world, input, sum, call_options);
    case collective::broadcast:
      return broadcast(world, input, 0, call_options);
    case collective::reduce:
      return reduce(world, input, result.first(world.rank() == 0 ? count : 0), sum, 0, call_options);
    case collective::allgather:
      return allgather(world, input.first(mine), result, call_options);
    case collective::reduce_scatter:
      return reduce_scatter(world, input, result.first(mine), sum, call_options);
    default:
      return all_to_all(world, input, result, call_options);
  }
}

inline double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace detail

MUSTER_INLINE std::vector<measured_time> calibrate(
    group& world, const std::function<void(collective kind, std::size_t bytes)>& on_size) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const bool with_native = world.abilities().native_collectives;
  auto* const source = world.transport().memory();  // the memory that performance-sensitive programs use
  detail::memory buffers{buffer<float>(detail::largest_measured / sizeof(float), source),
                         buffer<float>(detail::largest_measured / sizeof(float), source)};
  std::vector<measured_time> all;
  for (const collective kind : detail::measured_collectives) {
    for (std::size_t bytes = detail::smallest_measured; bytes <= detail::largest_measured; bytes *= 4) {
      if (on_size) on_size(kind, bytes);
      // a multiple of the number of ranks, for all_to_all
      const std::size_t count = std::max(bytes / sizeof(float) / ranks, std::size_t{1}) * ranks;
      std::map<algorithm, std::vector<double>> times;
      std::map<algorithm, std::size_t> calls;
      const auto known = algorithms_of(kind);
      for (std::size_t round = 0; round <= detail::measured_rounds; ++round) {
        for (std::size_t turn = 0; turn < known.size(); ++turn) {
          // each round begins with another algorithm
          const algorithm name = known[(turn + round) % known.size()];
          if (name == algorithm::native && !with_native) continue;
          std::vector<double> durations(round == 0 ? 3 : calls[name]);
          for (double& time : durations) {
            // without a barrier, a root that runs ahead would hide its call's cost at the other ranks
            barrier(world);
            const auto begin = clock::now();
            detail::call_once(world, buffers, kind, count, name);
            time = seconds_since(begin);
          }
          allreduce(world, durations, max);
          if (round == 0) {  // round 0 only warms up and determines the number of calls in a round
            calls[name] = detail::calls_in_a_round(detail::median(durations));
          } else {
            times[name].insert(times[name].end(), durations.begin(), durations.end());
          }
        }
      }
      for (const algorithm name : known) {
        if (times.contains(name)) all.push_back({kind, name, count * sizeof(float), detail::median(times[name])});
      }
    }
  }
  return all;
}

MUSTER_INLINE transport_costs fit_costs(std::span<const measured_time> times, int rank_count,
                                        const transport_costs& known) {
  // The model is linear in its constants: for each measurement, the sum over constant times factor should be 1, where
  // the factor is the constant's part of the model divided by the measured time.
  using vector3 = std::array<double, 3>;
  std::array<vector3, 3> matrix{};
  vector3 right{};
  for (const auto& t : times) {
    if (t.algorithm == algorithm::native || std::ranges::count(all_algorithms, t.algorithm) == 0 || t.seconds <= 0)
      continue;
    const auto factor = [&](transport_costs unit) {
      unit.next_message = known.next_message;
      unit.ranks_a_core = known.ranks_a_core;
      return estimate(t.kind, t.algorithm, t.bytes, rank_count, unit) / t.seconds;
    };
    const vector3 row{factor({1, 0, 0}), factor({0, 1, 0}), factor({0, 0, 1})};
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) matrix[i][j] += row[i] * row[j];
      right[i] += row[i];
    }
  }
  // Computes the least squares with no constant below 0: sets one constant after the other to its best value (projected
  // Gauss-Seidel), which converges to the minimum of a convex function. Correlated constants take the most turns.
  constexpr int turns = 20'000;
  vector3 x{};
  for (int turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < 3; ++i) {
      const double rest = right[i] - matrix[i][0] * x[0] - matrix[i][1] * x[1] - matrix[i][2] * x[2];
      if (matrix[i][i] > 0) x[i] = std::max(0.0, x[i] + rest / matrix[i][i]);
    }
  }
  return {x[0], x[1], x[2], known.next_message, known.ranks_a_core};
}

MUSTER_INLINE algorithm_rules fastest(std::span<const measured_time> times) {
  constexpr double noise = 0.95;
  std::map<collective, std::map<std::size_t, std::map<algorithm, double>>> by_size;
  for (const auto& t : times) by_size[t.kind][t.bytes][t.algorithm] = t.seconds;
  std::string rules;
  for (const auto& [kind, sizes] : by_size) {
    std::size_t before = 0;
    algorithm_rules::rule current{kind, 0, algorithm_rules::no_limit, algorithms_of(kind).front()};
    const auto add = [&](const algorithm_rules::rule& rule) { rules += (rules.empty() ? "" : ",") + to_string(rule); };
    for (const auto& [bytes, candidates] : sizes) {
      const auto current_time = candidates.find(current.algorithm);
      const auto best =
          std::ranges::min_element(candidates, {}, [](const auto& candidate) { return candidate.second; });
      if (best != current_time && (current_time == candidates.end() || best->second < noise * current_time->second)) {
        const double between = std::sqrt(static_cast<double>(before) * static_cast<double>(bytes));
        current.high = static_cast<std::size_t>(std::ceil(between));
        if (before != 0) add(current);
        current = {kind, current.high, algorithm_rules::no_limit, best->first};
      }
      before = bytes;
    }
    add(current);
  }
  return algorithm_rules::parse(rules.empty() ? "auto" : rules);
}

}}  // namespace muster::v0
