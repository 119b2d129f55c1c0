// Holds collectives to their oracle: over a group of the program's, or a user's algorithm over groups made for it.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include <muster/comm/transports/local.hpp>
#include <muster/testing/collective_case.hpp>

namespace muster { inline namespace v0 { namespace testing {

/// Checks the cases at this rank, asynchronous ones some at a time: all types, operations, sizes, roots, buffers in
/// place and off their alignment. Collective. Throws std::runtime_error that names rank, element and case, and how to
/// run that again.
inline void check_cases(const case_list& cases, group& world, draw_options from = {}) {
  const int ranks = world.size();
  const auto abilities = world.abilities();
  from.native = abilities.native_collectives;
  struct open {
    std::uint64_t index;
    scenario what;
    std::function<void()> end;
  };
  std::deque<open> pending;
  // Ranks may wait for what is under way whenever they like.
  random_stream patience(cases.seed, 1000 + static_cast<std::uint64_t>(world.rank()));
  const auto attempt = [&](std::uint64_t index, const scenario& what, auto&& act) {
    try {
      act();
    } catch (const std::exception& failure) {
      const auto seed = "MUSTER_TEST_SEED=" + std::to_string(cases.seed);
      throw std::runtime_error(std::string(failure.what()) + "; case " + std::to_string(index) + " over " +
                               std::string(abilities.name) + ": " + what.describe(ranks) + "; " + seed +
                               " MUSTER_TEST_CASE=" + std::to_string(index) + " runs it alone");
    }
  };
  const auto end_oldest = [&] {
    const auto oldest = std::move(pending.front());
    pending.pop_front();
    attempt(oldest.index, oldest.what, oldest.end);
  };
  for (std::uint64_t index = cases.first; index < cases.first + cases.count; ++index) {
    random_stream random(cases.seed, static_cast<std::uint64_t>(ranks) << 48 | index);
    const scenario what = draw(random, ranks, from);
    attempt(index, what, [&] { pending.push_back({index, what, begin(what, world)}); });
    while (!pending.empty() && (!what.async || pending.size() > std::size_t{5} || patience.below(2) == 0)) end_oldest();
  }
  while (!pending.empty()) end_oldest();
}

/// Checks a registered algorithm, or one of the library's, over ranks that are threads: groups of 1 to `most_ranks`,
/// `cases.count` cases each. Throws what check_cases does.
inline void check_algorithm(collective kind, algorithm how, const case_list& cases = {.count = 200},
                            int most_ranks = 5) {
  for (int ranks = 1; ranks <= most_ranks; ++ranks) {
    muster::detail::run_as_threads(ranks, {},
                                   [&](group& world) { check_cases(cases, world, {.kinds = {kind}, .hows = {how}}); });
  }
}

}}}  // namespace muster::v0::testing
