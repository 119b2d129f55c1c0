// What the settings of a job make of its groups.
#pragma once

#include <muster/comm/group.hpp>
#include <muster/core/env.hpp>

namespace muster::inline v0::detail {

/// As the settings ask; rank 0 reads the profile for all ranks, so its file need not be on every
/// host. `ranks_here`: of this host. Throws configuration_error for what cannot be.
[[nodiscard]] group_settings settings_for_groups(const settings& configuration, int rank, int ranks_here);

/// `mine` with the algorithm rules and the profile of rank 0, whatever the other ranks were told. Collective over a
/// group that has just been made, by messages beside the collectives, so that these keep their numbers. Where this rank
/// was told something else, the log says so at info. A failure (rank 0 gave up, or does not come) becomes the group's:
/// its next call says it.
[[nodiscard]] group_settings settings_of_rank_zero(group& world, const group_settings& mine,
                                                   const settings& configuration);

/// Throws configuration_error where the groups of this world cannot be as the settings ask; a profile that says nothing
/// about it is a warning.
void check_for_groups(const group_settings& wanted, const transport_abilities& transport, int ranks);

/// Of ranks as threads.
[[nodiscard]] transport_abilities local_abilities();

}  // namespace muster::inline v0::detail
