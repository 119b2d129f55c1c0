// Processes that carry a store together, in thousands of drawn histories: what clients see is what one store would show
// them, and as long as a majority lives they get answers.
#include "comm/net/replica.hpp"

#include <cstdlib>
#include <string>

#include "catch.hpp"
#include "replica_simulation.hpp"

using replica_simulation::outcome;
using replica_simulation::run;
using replica_simulation::world;

namespace {

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// MUSTER_TEST_SEED and MUSTER_TEST_CASES ask for others; a seed that failed is named.
template <class Settle>
void over_seeds(const world& of, std::uint64_t first, std::uint64_t count, Settle&& settle) {
  first = number_from("MUSTER_TEST_SEED", first);
  count = number_from("MUSTER_TEST_CASES", count);
  for (auto seed = first; seed < first + count; ++seed) {
    CAPTURE(seed);
    try {
      settle(run(seed, of).finish());
    } catch (const replica_simulation::violation& broken) {
      FAIL(broken.what());
    }
  }
}

}  // namespace

TEST_CASE("an embedded store that nothing happens to answers everybody", "[replica]") {
  world of;
  of.faults = 0;
  over_seeds(of, 1, 20, [](const outcome& seen) {
    CHECK(seen.progresses);
    CHECK(seen.answered > 1000);
  });
}

TEST_CASE("on one host an embedded store outlives all but one of its processes", "[replica]") {
  world of;
  of.hosts = 1;
  std::uint64_t views = 0;
  over_seeds(of, 1000, 400, [&](const outcome& seen) {
    views += seen.views;
    if (seen.lives) CHECK(seen.progresses);
  });
  CHECK(views > 400);
}

TEST_CASE("over hosts an embedded store shows one history, whoever dies, stops, is cut off, comes or leaves",
          "[replica]") {
  for (const int hosts : {2, 3, 5}) {
    CAPTURE(hosts);
    world of;
    of.hosts = hosts;
    of.members = 3 + hosts % 3;
    over_seeds(of, static_cast<std::uint64_t>(10000 * hosts), 500, [](const outcome&) {});
  }
}
