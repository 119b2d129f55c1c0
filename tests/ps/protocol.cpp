// The parameter server's protocol in a simulated world, with invariants that must hold in every run.
#include <cstdlib>
#include <iostream>
#include <string>

#include "catch.hpp"
#include "simulated_checks.hpp"
#include "simulated_faults.hpp"
#include "simulated_healing.hpp"
#include "simulated_network.hpp"
#include "simulated_work.hpp"

namespace {

std::uint64_t number_from(const char* variable, std::uint64_t fallback) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

struct tally {
  std::uint64_t runs = 0;
  std::uint64_t excused = 0;
  simulation::outcome sum;
};

/// Runs this many simulations. MUSTER_TEST_SEED=S MUSTER_TEST_CASES=1 repeats a failed run.
template <class World>
tally simulate(std::uint64_t runs, World&& make) {
  const std::uint64_t first = number_from("MUSTER_TEST_SEED", 20261122);
  runs = number_from("MUSTER_TEST_CASES", runs);
  tally sums;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    muster::random_stream draw(seed, 99);
    try {
      const auto ended = simulation::run(seed, make(draw)).finish();
      ++sums.runs;
      if (sums.runs % 20000 == 0) std::cout << sums.runs << " runs, the last of seed " << seed << std::endl;
      sums.excused += ended.excused ? 1 : 0;
      sums.sum.pushes += ended.pushes;
      sums.sum.pulls += ended.pulls;
      sums.sum.versions += ended.versions;
      sums.sum.turns = std::max(sums.sum.turns, ended.turns);
      sums.sum.unhealed += ended.unhealed;
    } catch (const std::logic_error& broken) {
      FAIL("seed " << seed << ": " << broken.what() << "; again: MUSTER_TEST_SEED=" << seed << " MUSTER_TEST_CASES=1");
    }
  }
  std::cout << sums.runs << " runs, " << sums.sum.pushes << " pushes, " << sums.sum.pulls << " pulls, "
            << sums.sum.versions << " maps; in " << sums.excused
            << " more servers failed than there were copies; workers went on "
            << "within " << sums.sum.turns << " turns, but for " << sums.sum.unhealed << " runs\n";
  return sums;
}

simulation::world any_world(muster::random_stream& draw) {
  simulation::world options;
  options.servers = 1 + static_cast<int>(draw.below(5));
  options.workers = 1 + static_cast<int>(draw.below(4));
  options.ranges = 1 + draw.below(8);
  options.faults = 1 + static_cast<int>(draw.below(7));
  options.loss = draw.below(3) == 0 ? 0.2 : 0.02;
  using kind = muster::ps::consistency::kind;
  options.model.type = static_cast<kind>(draw.below(3));
  options.model.most_clocks_behind = draw.below(4);
  return options;
}

}  // namespace

TEST_CASE("with a replica no acknowledged push is lost, none applied twice, and no worker waits for ever",
          "[simulation][slow]") {
  const auto sums = simulate(1200, [](muster::random_stream& draw) {
    auto options = any_world(draw);
    options.replicas = 1;
    return options;
  });
  CHECK(sums.excused * 10 < sums.runs);
  CHECK(sums.sum.unhealed * 20 < sums.runs);
}

TEST_CASE("with two replicas two servers may die at once", "[simulation][slow]") {
  const auto sums = simulate(500, [](muster::random_stream& draw) {
    auto options = any_world(draw);
    options.servers = 3 + static_cast<int>(draw.below(3));
    options.replicas = 2;
    return options;
  });
  CHECK(sums.excused * 10 < sums.runs);
  CHECK(sums.sum.unhealed * 20 < sums.runs);
}

TEST_CASE("without replicas ranges move and servers are suspected, and nothing is lost", "[simulation][slow]") {
  const auto sums = simulate(600, [](muster::random_stream& draw) {
    auto options = any_world(draw);
    options.replicas = 0;
    options.server_crashes = false;
    return options;
  });
  CHECK(sums.excused == 0);
}

TEST_CASE("of batches that servers hand out each sample is used once at every range, whatever dies and joins",
          "[simulation][slow]") {
  const auto sums = simulate(1000, [](muster::random_stream& draw) {
    auto options = any_world(draw);
    options.leases = true;
    options.replicas = 1;
    return options;
  });
  CHECK(sums.excused * 10 < sums.runs);
}
