// What a world of processes does as rank 0 says, whatever the other ranks were told.
#pragma once

#include <muster/comm/group.hpp>
#include <muster/core/env.hpp>

namespace muster::inline v0::detail {

/// `mine` with the algorithm rules and the profile of rank 0. Collective over a group that has just been made, by
/// messages beside the collectives, so that these keep their numbers. Where this rank was told something else, the log
/// says so at info. A failure (rank 0 gave up, does not come, sends nonsense) becomes the group's: its next call says
/// it.
[[nodiscard]] group_settings settings_of_rank_zero(group& world, const group_settings& mine,
                                                   const settings& configuration);

}  // namespace muster::inline v0::detail
