// Cores of ranks where there are more ranks than cores.
#include <muster/comm/transports/shm/cores.hpp>

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
    std::vector<std::uint32_t> last_cores(1 + random.below(20));
    for (auto& core : last_cores) core = allowed[random.below(allowed.size())];
    int moves = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < static_cast<int>(last_cores.size()); ++rank) {
        const int better = emptier_core(last_cores, rank, allowed);
        if (better < 0) continue;
        last_cores[static_cast<std::size_t>(rank)] = static_cast<std::uint32_t>(better);
        moved = true;
        ++moves;
      }
    }
    const auto at = [&](std::uint32_t core) { return std::count(last_cores.begin(), last_cores.end(), core); };
    const auto [least, most] =
        std::minmax_element(allowed.begin(), allowed.end(), [&](auto a, auto b) { return at(a) < at(b); });
    CHECK(at(*most) - at(*least) <= 1);
    CHECK(moves <= static_cast<int>(last_cores.size()));
    CHECK(std::all_of(last_cores.begin(), last_cores.end(),
                      [&](auto core) { return at(core) > 0 && core >= allowed.front(); }));
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

TEST_CASE("cores share a cache if the system says the same of each, or nothing") {
  const temporary_folder folder;
  const std::filesystem::path system = folder / "cpu";
  const std::vector<std::uint32_t> cores{2, 3, 18};
  CHECK(share_a_cache({}, system));
  CHECK(share_a_cache(cores, system));
  const auto write_cache_list = [&](std::uint32_t core, const char* list) {
    const auto cache = system / ("cpu" + std::to_string(core)) / "cache" / "index3";
    std::filesystem::create_directories(cache);
    std::ofstream(cache / "shared_cpu_list") << list << '\n';
  };
  for (const auto core : cores) write_cache_list(core, "2-3,18");
  CHECK(share_a_cache(cores, system));
  write_cache_list(18, "16-19");
  CHECK_FALSE(share_a_cache(cores, system));
  CHECK(share_a_cache(std::span(cores).first(2), system));
  CHECK_FALSE(share_a_cache(std::vector<std::uint32_t>{2, 4}, system));  // the folder has no file for the second core
}
