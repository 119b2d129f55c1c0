// Which transport a program's ranks talk over, how it is made, and what the settings make of its groups.
#pragma once

#include <string>
#include <vector>

#include <muster/comm/context.hpp>
#include <muster/comm/settings.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// What the settings and the launcher come to.
struct transport_choice {
  std::string name = "self";
  std::string between{};  ///< hierarchical: what joins the hosts
  int threads = 1;
  std::string why{};

  [[nodiscard]] bool is_of_processes() const noexcept { return name != "self" && name != "local"; }
};

/// A transport of an optional part that is linked into this program, or of the program's own; null where there is none.
[[nodiscard]] const process_transport* find_registered(std::string_view name) noexcept;

/// The same at every rank of a job. `asked` is what `--transport` says. Throws configuration_error for what cannot be.
[[nodiscard]] transport_choice choose_transport(const settings& configuration, const launch_env& launch,
                                                const std::string& asked);
[[nodiscard]] inline transport_choice choose_transport(const settings& configuration, const launch_env& launch) {
  return choose_transport(configuration, launch, configuration.value(setting::transport));
}

/// Connects this process to the others by what was chosen, which is of processes. Collective.
[[nodiscard]] std::unique_ptr<transport> connect_processes(const transport_choice& chosen,
                                                           const settings& configuration, const launch_env& launch);

/// As the settings ask. `ranks_here`: of this host. Throws configuration_error for what cannot be.
[[nodiscard]] group_settings settings_for_groups(const settings& configuration, int ranks_here);

/// `mine` with the algorithm rules of rank 0, whatever the other ranks were told. Collective over a
/// group that has just been made, by messages beside the collectives, so that these keep their numbers. Where this rank
/// was told something else, the log says so at info. A failure (rank 0 gave up, or does not come) becomes the group's:
/// its next call says it.
[[nodiscard]] group_settings settings_of_rank_zero(group& world, const group_settings& mine,
                                                   const settings& configuration);

/// Of ranks as threads.
[[nodiscard]] transport_abilities local_abilities();

}}}  // namespace muster::v0::detail
