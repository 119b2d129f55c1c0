// What the settings of a job make of its groups.
#pragma once

#include <muster/comm/group.hpp>
#include <muster/core/env.hpp>

namespace muster::inline v0::detail {

/// As the settings ask; the profile is read where rank 0 is: its word is everyone's, and its file need not be on every
/// host. Throws configuration_error for what cannot be.
[[nodiscard]] group_settings settings_for_groups(const settings& configuration, int rank);

/// A thread beside the caller's pays where there is a core for it: not where the ranks of the host need all of them.
[[nodiscard]] bool wants_progress_thread(const settings& configuration, int ranks_here);

/// Throws configuration_error where the groups of this world cannot be as the settings ask; a profile that says nothing
/// about it is a warning.
void check_for_groups(const group_settings& wanted, const transport_abilities& transport, int ranks);

/// Of ranks as threads.
[[nodiscard]] transport_abilities local_abilities();

}  // namespace muster::inline v0::detail
