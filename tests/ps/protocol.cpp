// The protocol of the parameter server in a simulated world: what must hold in every run.
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

/// So many runs; MUSTER_TEST_SEED=S MUSTER_TEST_CASES=1 repeats the one that failed.
template <class World>
tally simulate(std::uint64_t runs, World&& make) {
  const std::uint64_t first = number_from("MUSTER_TEST_SEED", 20261122);
  runs = number_from("MUSTER_TEST_CASES", runs);
  tally seen;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    muster::random_stream draw(seed, 99);
    try {
      const auto ended = simulation::run(seed, make(draw)).finish();
      ++seen.runs;
      if (seen.runs % 20000 == 0) std::cout << seen.runs << " runs, the last of seed " << seed << std::endl;
      seen.excused += ended.excused ? 1 : 0;
      seen.sum.pushes += ended.pushes;
      seen.sum.pulls += ended.pulls;
      seen.sum.versions += ended.versions;
      seen.sum.turns = std::max(seen.sum.turns, ended.turns);
      seen.sum.unhealed += ended.unhealed;
    } catch (const std::logic_error& broken) {
      FAIL("seed " << seed << ": " << broken.what() << "; again: MUSTER_TEST_SEED=" << seed << " MUSTER_TEST_CASES=1");
    }
  }
  std::cout << seen.runs << " runs, " << seen.sum.pushes << " pushes, " << seen.sum.pulls << " pulls, "
            << seen.sum.versions << " maps; in " << seen.excused
            << " more servers failed than there were copies; workers went on "
            << "within " << seen.sum.turns << " turns, but for " << seen.sum.unhealed << " runs\n";
  return seen;
}

simulation::world any_world(muster::random_stream& draw) {
  simulation::world of;
  of.servers = 1 + static_cast<int>(draw.below(5));
  of.workers = 1 + static_cast<int>(draw.below(4));
  of.ranges = 1 + draw.below(8);
  of.faults = 1 + static_cast<int>(draw.below(7));
  of.loss = draw.below(3) == 0 ? 0.2 : 0.02;
  using kind = muster::ps::consistency::kind;
  of.how.what = static_cast<kind>(draw.below(3));
  of.how.bound = draw.below(4);
  return of;
}

}  // namespace

TEST_CASE("with a replica no acknowledged push is lost, none applied twice, and no worker waits for ever",
          "[simulation][slow]") {
  const auto seen = simulate(1200, [](muster::random_stream& draw) {
    auto of = any_world(draw);
    of.replicas = 1;
    return of;
  });
  CHECK(seen.excused * 10 < seen.runs);
  CHECK(seen.sum.unhealed * 20 < seen.runs);
}

TEST_CASE("with two replicas two servers may die at once", "[simulation][slow]") {
  const auto seen = simulate(500, [](muster::random_stream& draw) {
    auto of = any_world(draw);
    of.servers = 3 + static_cast<int>(draw.below(3));
    of.replicas = 2;
    return of;
  });
  CHECK(seen.excused * 10 < seen.runs);
  CHECK(seen.sum.unhealed * 20 < seen.runs);
}

TEST_CASE("without replicas ranges move and servers are suspected, and nothing is lost", "[simulation][slow]") {
  const auto seen = simulate(600, [](muster::random_stream& draw) {
    auto of = any_world(draw);
    of.replicas = 0;
    of.server_crashes = false;
    return of;
  });
  CHECK(seen.excused == 0);
}

TEST_CASE("of batches that servers hand out each sample is used once at every range, whatever dies and joins",
          "[simulation][slow]") {
  const auto seen = simulate(1000, [](muster::random_stream& draw) {
    auto of = any_world(draw);
    of.leases = true;
    of.replicas = 1;
    return of;
  });
  CHECK(seen.excused * 10 < seen.runs);
}
