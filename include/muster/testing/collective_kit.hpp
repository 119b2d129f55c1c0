// Tests of collectives against their oracle: over a group of the program, or a user's algorithm over groups that the
// test creates.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include <muster/comm/transports/threads.hpp>
#include <muster/testing/collective_case.hpp>

namespace muster { inline namespace v0 { namespace testing {

/// Checks the cases at this rank, with several asynchronous cases at a time: all types, operations, sizes, roots,
/// buffers in place and misaligned. Collective. Throws std::runtime_error that names the rank, the element and the
/// case, and how to run the case again.
inline void check_cases(const case_list& cases, group& world, draw_options choices = {}) {
  const int rank_count = world.size();
  const auto abilities = world.abilities();
  choices.native = abilities.native_collectives;
  struct open {
    std::uint64_t index;
    scenario parameters;
    std::function<void()> end;
  };
  std::deque<open> pending;
  // A rank may wait for outstanding calls at any time.
  random_stream patience(cases.seed, 1000 + static_cast<std::uint64_t>(world.rank()));
  const auto attempt = [&](std::uint64_t index, const scenario& parameters, auto&& act) {
    try {
      act();
    } catch (const std::exception& failure) {
      const auto seed = "MUSTER_TEST_SEED=" + std::to_string(cases.seed);
      throw std::runtime_error(std::string(failure.what()) + "; case " + std::to_string(index) + " over " +
                               std::string(abilities.name) + ": " + parameters.describe(rank_count) + "; " + seed +
                               " MUSTER_TEST_CASE=" + std::to_string(index) + " runs it alone");
    }
  };
  const auto end_oldest = [&] {
    const auto oldest = std::move(pending.front());
    pending.pop_front();
    attempt(oldest.index, oldest.parameters, oldest.end);
  };
  for (std::uint64_t index = cases.first; index < cases.first + cases.count; ++index) {
    random_stream random(cases.seed, static_cast<std::uint64_t>(rank_count) << 48 | index);
    const scenario parameters = draw(random, rank_count, choices);
    attempt(index, parameters, [&] { pending.push_back({index, parameters, begin(parameters, world)}); });
    while (!pending.empty() && (!parameters.async || pending.size() > std::size_t{5} || patience.below(2) == 0))
      end_oldest();
  }
  while (!pending.empty()) end_oldest();
}

/// Checks a registered algorithm, or an algorithm of the library, with ranks as threads: groups of 1 to `most_ranks`
/// ranks, with `cases.count` cases each. Throws the errors of check_cases.
inline void check_algorithm(collective kind, algorithm method, const case_list& cases = {.count = 200},
                            int most_ranks = 5) {
  for (int rank_count = 1; rank_count <= most_ranks; ++rank_count) {
    muster::detail::run_as_threads(
        rank_count, {}, [&](group& world) { check_cases(cases, world, {.kinds = {kind}, .algorithms = {method}}); });
  }
}

}}}  // namespace muster::v0::testing

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
