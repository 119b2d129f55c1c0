// Selects the transport of a program's ranks, connects it, and derives the settings of its groups.
#pragma once

#include <string>
#include <vector>

#include <muster/comm/comm_settings.hpp>
#include <muster/comm/context.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The transport that follows from the settings and the launcher.
struct transport_choice {
  std::string name = "self";
  std::string network{};  ///< hierarchical: the transport between the hosts
  int threads = 1;        ///< number of ranks in this process, as threads
  std::string reason{};   ///< the reason for the choice, for the log

  [[nodiscard]] bool is_of_processes() const noexcept { return name != "self" && name != "threads"; }
};

/// Returns the registered transport of that name, which an optional part of muster that is linked into this program, or
/// the program itself, has registered; null if there is none.
[[nodiscard]] const process_transport* find_registered(std::string_view name) noexcept;

/// Selects the transport, with the same result at every rank of a job. `requested` is the value of `--transport`.
/// Throws configuration_error for an impossible combination.
[[nodiscard]] transport_choice choose_transport(const settings& configuration, const launch_env& launch,
                                                const std::string& requested);
[[nodiscard]] inline transport_choice choose_transport(const settings& configuration, const launch_env& launch) {
  return choose_transport(configuration, launch, configuration.value(setting::transport));
}

/// Connects this process to the others by the chosen transport, which must be one between processes. Collective.
[[nodiscard]] std::unique_ptr<transport> connect_processes(const transport_choice& choice,
                                                           const settings& configuration, const launch_env& launch);

/// Returns the settings of groups. `local_ranks`: number of ranks of this host. Throws configuration_error for an
/// impossible combination.
[[nodiscard]] group_settings settings_for_groups(const settings& configuration, int local_ranks);

/// Returns `mine` with the algorithm rules of rank 0, whatever the settings of other ranks are. Collective over a group
/// that has just been created. The messages do not use collectives, so these keep their sequence numbers. If this
/// rank's own rules differ, the log reports that at level info. A failure (rank 0 abandons the call or does not arrive)
/// becomes the group's failure, which the group's next call throws.
[[nodiscard]] group_settings settings_of_rank_zero(group& world, const group_settings& mine,
                                                   const settings& configuration);

/// Returns the abilities of the transport between ranks as threads.
[[nodiscard]] transport_abilities thread_abilities();

}}}  // namespace muster::v0::detail
