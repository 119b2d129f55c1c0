#include "cores.hpp"

#include <algorithm>
#include <fstream>
#include <string>

#include "../../timing.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// Whether the rank shares its core with others, and is the last of them.
bool is_last_of_several(std::span<const std::uint32_t> seen, int rank) {
  const auto here = seen[static_cast<std::size_t>(rank)];
  const auto later = seen.subspan(static_cast<std::size_t>(rank) + 1);
  const bool is_last = std::find(later.begin(), later.end(), here) == later.end();
  return is_last && std::count(seen.begin(), seen.end(), here) > 1;
}

}  // namespace

int emptier_core(std::span<const std::uint32_t> seen, int rank, std::span<const std::uint32_t> allowed) {
  if (!is_last_of_several(seen, rank)) return -1;
  const auto ranks_at = [&](std::uint32_t core) { return std::count(seen.begin(), seen.end(), core); };
  const auto emptiest = std::min_element(allowed.begin(), allowed.end(),
                                         [&](auto one, auto other) { return ranks_at(one) < ranks_at(other); });
  if (emptiest == allowed.end()) return -1;
  const bool pays = ranks_at(*emptiest) + 1 < ranks_at(seen[static_cast<std::size_t>(rank)]);
  return pays ? static_cast<int>(*emptiest) : -1;
}

std::vector<std::uint32_t> cores_of(const cpu_set_t& set) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) found.push_back(core);
  }
  return found;
}

std::vector<std::uint32_t> allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? cores_of(allowed) : std::vector<std::uint32_t>();
}

bool share_a_cache(std::span<const std::uint32_t> cores, const std::filesystem::path& system) {
  const auto list_of = [&](std::uint32_t core) {  // the same text for each core of a cache
    std::string list;
    std::ifstream file(system / ("cpu" + std::to_string(core)) / "cache/index3/shared_cpu_list");
    std::getline(file, list);
    return list;
  };
  const std::string first = cores.empty() ? "" : list_of(cores.front());
  return std::all_of(cores.begin(), cores.end(), [&](auto core) { return list_of(core) == first; });
}

bool bind_to_core(std::uint32_t core) noexcept {
  cpu_set_t one;
  CPU_ZERO(&one);
  if (core < CPU_SETSIZE) CPU_SET(core, &one);  // none of them is an error
  return ::sched_setaffinity(0, sizeof one, &one) == 0;
}

bool move_to_core(std::uint32_t core) noexcept {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0 || !bind_to_core(core)) return false;
  (void)::sched_setaffinity(0, sizeof allowed, &allowed);
  return true;
}

void core_spreader::spread(int rank) {
  if (!is_last_of_several(seen_, rank)) return;
  const auto now = clock::now();
  if (now < next_) return;
  // A system call and an allocation: by one rank of a core that has several, at most each millisecond.
  const int better = emptier_core(seen_, rank, allowed_cores());
  next_ = now + shm_timing::shortest_rest;
  if (better < 0) return;
  rest_ = now > moved_ + shm_timing::lasting_move ? shm_timing::shortest_rest
                                                  : std::min<clock::duration>(2 * rest_, shm_timing::longest_rest);
  moved_ = now;
  next_ = now + rest_;
  move_to_core(static_cast<std::uint32_t>(better));
}

}}}  // namespace muster::v0::detail
