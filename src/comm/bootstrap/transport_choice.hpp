// Which transport a program's ranks talk over, and how it is made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/context.hpp>
#include <muster/comm/settings.hpp>

namespace muster::inline v0::detail {

/// What the settings and the launcher come to.
struct transport_choice {
  std::string name = "self";
  std::string between{};  ///< hierarchical: what joins the hosts
  int threads = 1;
  std::string why{};

  [[nodiscard]] bool is_of_processes() const noexcept { return name != "self" && name != "local"; }
};

/// The transports of optional parts that are linked into this program.
[[nodiscard]] const std::vector<process_transport>& registered_transports() noexcept;

/// The same at every rank of a job. `asked` is what `--transport` says. Throws configuration_error for what cannot be.
[[nodiscard]] transport_choice choose_transport(const settings& configuration, const launch_env& launch,
                                                const std::string& asked);
[[nodiscard]] inline transport_choice choose_transport(const settings& configuration, const launch_env& launch) {
  return choose_transport(configuration, launch, configuration.value(setting::transport));
}

/// Connects this process to the others by what was chosen, which is of processes. Collective.
[[nodiscard]] std::unique_ptr<transport> connect_processes(const transport_choice& chosen,
                                                           const settings& configuration, const launch_env& launch);

}  // namespace muster::inline v0::detail
