#include "connect.hpp"

#include <sched.h>
#include <unistd.h>

#include <numeric>

#include <muster/comm/rendezvous/open_store.hpp>
#include <muster/core/log.hpp>

namespace muster::inline v0::detail {
namespace {

// Binds the calling thread, and all it starts, to the core of that number among those it may run on.
void pin_to_core(int number) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int left = number % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || left-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (::sched_setaffinity(0, sizeof one, &one) != 0)
      log(log_level::warning, "this rank could not be bound to a core");
    return;
  }
}

std::string meeting_place(const settings& configuration, const launch_env& launch) {
  return "muster." + std::to_string(::getuid()) + "." + job_name(configuration, launch);
}

}  // namespace

std::unique_ptr<shm_transport> connect_host(const settings& configuration, const launch_env& launch, int rank, int size,
                                            std::string_view suffix) {
  const auto pulls = configuration.choice(setting::cma, {"auto", "on", "off"});
  if (configuration.choice(setting::pin, {"off", "on"}) == 1) pin_to_core(rank);
  const seconds timeout(configuration.positive(setting::timeout));
  auto own = std::make_unique<segment>(reserve_for(size));
  // The first that is taken of every rank's memory: at its beginning, as all know.
  const std::vector<std::uint64_t> lanes(static_cast<std::size_t>(size), shm_board::allocate_lane(*own, size));
  auto host = meet(meeting_place(configuration, launch) + std::string(suffix), rank, size, std::move(own), timeout);
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  auto made = std::make_unique<shm_transport>(std::move(host), std::move(all), rank, lanes);
  made->agree(static_cast<cma_wish>(pulls), deadline_after(timeout));
  return made;
}

std::unique_ptr<shm_transport> connect_anew(const std::string& name, int rank, int size, std::shared_ptr<segment> own,
                                            cma_wish pulls, seconds timeout, const std::function<bool()>& given_up) {
  const auto lane = shm_board::allocate_lane(*own, size);
  // A lane of a meeting that failed is never used again: others may have seen it.
  auto host = meet(name, rank, size, std::move(own), timeout, lane, given_up);
  std::vector<int> all;
  std::vector<std::uint64_t> lanes;
  for (int r = 0; r < size; ++r) {
    all.push_back(r);
    lanes.push_back(host->lane(r));
  }
  auto made = std::make_unique<shm_transport>(std::move(host), std::move(all), rank, lanes);
  made->agree(pulls, deadline_after(timeout), given_up);
  return made;
}

std::unique_ptr<transport> connect_shm(const settings& configuration, const launch_env& launch) {
  return connect_host(configuration, launch, launch.rank, launch.size);
}

}  // namespace muster::inline v0::detail
