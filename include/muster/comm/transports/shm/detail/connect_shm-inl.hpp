#pragma once

#include <muster/comm/transports/shm/connect_shm.hpp>

#include <unistd.h>

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

inline std::string socket_name(const settings& configuration, const launch_env& launch) {
  return "muster." + std::to_string(::getuid()) + "." + job_name(configuration, launch);
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
