#pragma once

#include <muster/comm/transports/shm/connect_shm.hpp>

#include <unistd.h>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>

namespace muster { inline namespace v0 { namespace detail {
// Binds this rank to an allowed core, selected by the rank's number.
inline void pin(int rank) {
  const auto allowed = allowed_cores();
  if (!allowed.empty() && !bind_to_core(allowed[static_cast<std::size_t>(rank) % allowed.size()]))
    log(log_level::warning, "this rank could not be bound to a core");
}

// Returns the name at which the ranks of a host meet. Two launches on the host may have the same MUSTER_JOB, so the
// launcher's name for the start is a part, except for a parent process, which each rank may have for itself.
inline std::string socket_name(const settings& configuration, const launch_env& launch) {
  std::string name = "muster." + std::to_string(::getuid()) + "." + job_name(configuration, launch);
  const bool is_named = configuration.value(setting::job) != "auto" && !launch.start_name.empty();
  if (is_named && !launch.start_name.starts_with(parent_as_name)) name += "." + launch.start_name;
  return name;
}

MUSTER_INLINE std::unique_ptr<shm_transport> connect_host(const settings& configuration, const launch_env& launch,
                                                          int rank, int rank_count, std::string_view suffix) {
  if (configuration.choice(setting::pin, {"off", "on"}) == 1) pin(rank);
  return connect_anew(socket_name(configuration, launch) + std::string(suffix), rank, rank_count,
                      std::make_shared<segment>(reserve_for(rank_count)),
                      seconds(configuration.number(setting::timeout)), {});
}

MUSTER_INLINE std::unique_ptr<shm_transport> connect_anew(const std::string& name, int rank, int rank_count,
                                                          std::shared_ptr<segment> own, seconds timeout,
                                                          const std::function<bool()>& is_aborted) {
  const auto slot = shm_group::allocate_slot(*own, rank_count);
  // The slot of a failed bootstrap is never reused: peers may have mapped it.
  auto host = bootstrap_host(name, rank, rank_count, std::move(own), timeout, slot, is_aborted);
  std::vector<int> ranks;
  std::vector<std::uint64_t> slots;
  for (int r = 0; r < rank_count; ++r) {
    ranks.push_back(r);
    slots.push_back(host->slot(r));
  }
  return std::make_unique<shm_transport>(std::move(host), std::move(ranks), rank, slots);
}

MUSTER_INLINE std::unique_ptr<transport> connect_shm(const settings& configuration, const launch_env& launch) {
  return connect_host(configuration, launch, launch.rank, launch.size);
}

}}}  // namespace muster::v0::detail
