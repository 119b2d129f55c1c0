// Where ranks run that are more than the cores.
#include "comm/transports/shm/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include <muster/core/random.hpp>

#include "../../../data/files.hpp"
#include "catch.hpp"

using muster::detail::allowed_cores;
using muster::detail::emptier_core;
using muster::detail::move_to_core;
using muster::detail::share_a_cache;

TEST_CASE("ranks that go where they are told to are spread evenly, and then they stay") {
  muster::random_stream random(11);
  for (int round = 0; round < 500; ++round) {
    CAPTURE(round);
    std::vector<std::uint32_t> allowed(1 + random.below(8));
    std::iota(allowed.begin(), allowed.end(), static_cast<std::uint32_t>(random.below(5)));
    std::vector<std::uint32_t> seen(1 + random.below(20));
    for (auto& core : seen) core = allowed[random.below(allowed.size())];
    int moves = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < static_cast<int>(seen.size()); ++rank) {
        const int better = emptier_core(seen, rank, allowed);
        if (better < 0) continue;
        seen[static_cast<std::size_t>(rank)] = static_cast<std::uint32_t>(better);
        moved = true;
        ++moves;
      }
    }
    const auto at = [&](std::uint32_t core) { return std::count(seen.begin(), seen.end(), core); };
    const auto [least, most] =
        std::minmax_element(allowed.begin(), allowed.end(), [&](auto one, auto other) { return at(one) < at(other); });
    CHECK(at(*most) - at(*least) <= 1);
    CHECK(moves <= static_cast<int>(seen.size()));
    CHECK(std::all_of(seen.begin(), seen.end(), [&](auto core) { return at(core) > 0 && core >= allowed.front(); }));
  }
  const std::vector<std::uint32_t> bound{1};
  const std::vector<std::uint32_t> all_at_one{1, 1, 1, 1};
  for (int rank = 0; rank < 4; ++rank) CHECK(emptier_core(all_at_one, rank, bound) == -1);
}

TEST_CASE("a thread that moves to another core may still run on all that it might") {
  const auto allowed = allowed_cores();
  REQUIRE_FALSE(allowed.empty());
  for (const auto core : allowed) {
    CHECK(move_to_core(core));
    CHECK(allowed_cores() == allowed);
  }
  CHECK_FALSE(move_to_core(CPU_SETSIZE));
}

TEST_CASE("cores share a cache if the first one's list names them all, or there is none") {
  const temporary_folder folder;
  const std::filesystem::path system = folder / "cpu";
  const std::vector<std::uint32_t> cores{2, 3, 18};
  CHECK(share_a_cache(cores, system));
  CHECK(share_a_cache({}, system));
  const auto says = [&](const char* cache, const char* list) {
    const auto of_cache = system / "cpu2" / "cache" / cache;
    std::filesystem::create_directories(of_cache);
    std::ofstream(of_cache / "shared_cpu_list") << list << '\n';
    return share_a_cache(cores, system);
  };
  CHECK_FALSE(says("index2", "2,18"));
  for (const char* const all : {"2-3,18", "0-63", "2,3,18", "0-3,16-19", "0,2-3,17-18,40"}) {
    CAPTURE(all);
    CHECK(says("index3", all));
  }
  for (const char* const others : {"2", "2-3", "2-3,16-17", "3-18", "0-1,2-3,19-31"}) {
    CAPTURE(others);
    CHECK_FALSE(says("index3", others));
  }
}
