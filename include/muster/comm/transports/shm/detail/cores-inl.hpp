#pragma once

#include <muster/comm/transports/shm/cores.hpp>

#include <algorithm>
#include <fstream>
#include <string>

#include <muster/comm/comm_timing.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
// Returns true if the rank shares its core with other ranks and is the last of the ranks on that core.
inline bool is_last_of_several(std::span<const std::uint32_t> last_cores, int rank) {
  const auto core = last_cores[static_cast<std::size_t>(rank)];
  const auto later = last_cores.subspan(static_cast<std::size_t>(rank) + 1);
  const bool is_last = std::find(later.begin(), later.end(), core) == later.end();
  return is_last && std::count(last_cores.begin(), last_cores.end(), core) > 1;
}

MUSTER_INLINE int emptier_core(std::span<const std::uint32_t> last_cores, int rank,
                               std::span<const std::uint32_t> allowed) {
  if (!is_last_of_several(last_cores, rank)) return -1;
  const auto ranks_at = [&](std::uint32_t core) { return std::count(last_cores.begin(), last_cores.end(), core); };
  const auto emptiest =
      std::min_element(allowed.begin(), allowed.end(), [&](auto a, auto b) { return ranks_at(a) < ranks_at(b); });
  if (emptiest == allowed.end()) return -1;
  const bool is_better = ranks_at(*emptiest) + 1 < ranks_at(last_cores[static_cast<std::size_t>(rank)]);
  return is_better ? static_cast<int>(*emptiest) : -1;
}

MUSTER_INLINE std::vector<std::uint32_t> cores_of(const cpu_set_t& set) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) found.push_back(core);
  }
  return found;
}

MUSTER_INLINE std::vector<std::uint32_t> allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? cores_of(allowed) : std::vector<std::uint32_t>();
}

MUSTER_INLINE bool share_a_cache(std::span<const std::uint32_t> cores, const std::filesystem::path& system) {
  const auto list_of = [&](std::uint32_t core) {  // the text is the same for all cores of a cache
    std::string list;
    std::ifstream file(system / ("cpu" + std::to_string(core)) / "cache/index3/shared_cpu_list");
    std::getline(file, list);
    return list;
  };
  const std::string first = cores.empty() ? "" : list_of(cores.front());
  return std::all_of(cores.begin(), cores.end(), [&](auto core) { return list_of(core) == first; });
}

MUSTER_INLINE bool bind_to_core(std::uint32_t core) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (core < CPU_SETSIZE) CPU_SET(core, &set);  // an empty set is an error of the system call
  return ::sched_setaffinity(0, sizeof set, &set) == 0;
}

MUSTER_INLINE bool move_to_core(std::uint32_t core) noexcept {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0 || !bind_to_core(core)) return false;
  (void)::sched_setaffinity(0, sizeof allowed, &allowed);
  return true;
}

MUSTER_INLINE void core_spreader::spread(int rank) {
  if (!is_last_of_several(last_cores_, rank)) return;
  const auto now = clock::now();
  if (now < next_check_) return;
  // This costs a system call and an allocation. Only one rank of a shared core does it, at most once a millisecond.
  const int better = emptier_core(last_cores_, rank, allowed_cores());
  next_check_ = now + shm_timing::shortest_move_interval;
  if (better < 0) return;
  wait_ = now > last_move_ + shm_timing::lasting_move
              ? shm_timing::shortest_move_interval
              : std::min<clock::duration>(2 * wait_, shm_timing::longest_move_interval);
  last_move_ = now;
  next_check_ = now + wait_;
  move_to_core(static_cast<std::uint32_t>(better));
}

}}}  // namespace muster::v0::detail
