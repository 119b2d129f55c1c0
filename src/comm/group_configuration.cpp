#include "group_configuration.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include <muster/comm/collectives/algo/chooser.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/local.hpp>
#include <muster/comm/profile.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/log.hpp>

#include "hierarchical/connect.hpp"
#include "shm/connect.hpp"
#include "transport_choice.hpp"

namespace muster::inline v0::detail {

group_settings settings_for_groups(const settings& configuration, int rank) {
  group_settings made{
      .timeout = seconds(configuration.positive(setting::timeout)),
      .how = algorithm_rules::parse(configuration.value(setting::algorithm), configuration.origin(setting::algorithm)),
      .check_full = configuration.choice(setting::check, {"auto", "full"}) == 1};
  if (rank == 0 && configuration.value(setting::profile) != "none") {
    made.profile = std::make_shared<algorithm_profile>(
        algorithm_profile::load(configuration.value(setting::profile), configuration.origin(setting::profile)));
  }
  return made;
}

bool wants_progress_thread(const settings& configuration, int ranks_here) {
  const auto asked = configuration.choice(setting::progress, {"auto", "on", "off"});
  return asked == 1 || (asked == 0 && 2 * static_cast<unsigned>(ranks_here) <= std::thread::hardware_concurrency());
}

void check_for_groups(const group_settings& wanted, const transport_abilities& transport, int ranks) {
  (void)choices(transport, ranks, wanted.how, wanted.profile.get());
  const auto* const measured = wanted.profile.get();
  if (measured == nullptr || ranks == 1 || measured->fits(transport, ranks) || log_rank() > 0) return;
  log(log_level::warning, "the profile is not used (it is of " + std::to_string(measured->ranks) + " ranks over " +
                              measured->transport + ", and these are " + std::to_string(ranks) + " over " +
                              std::string(transport.name) + "); measure them with muster-info --calibrate --save FILE");
}

transport_abilities local_abilities() { return local_transport(std::make_shared<local_hub>(1), 0).abilities(); }

std::vector<transport_abilities> all_transports(double ranks_a_core) {
  std::vector<transport_abilities> all{make_self_transport()->abilities(), local_abilities(), shm_abilities};
  for (const auto& made : registered_transports()) all.push_back(made.abilities(ranks_a_core));
  return all;
}

planned_world plan_world(const settings& configuration, const launch_env& launch) {
  const transport_choice chosen = choose_transport(configuration, launch);
  planned_world planned;
  planned.ranks = chosen.what == transport_kind::process ? launch.size : chosen.threads;
  planned.why = chosen.why;
  // Of this host alone: what others have is known when they are connected.
  const double ranks_a_core =
      static_cast<double>(launch.local_size) / std::max(1u, std::thread::hardware_concurrency());
  for (const auto& transport : all_transports(ranks_a_core)) {
    if (transport.name == chosen.name) planned.transport = transport;
    if (transport.name == chosen.between) planned.transport = hierarchical_abilities(transport);
  }
  planned.for_groups = settings_for_groups(configuration, 0);
  check_for_groups(planned.for_groups, planned.transport, planned.ranks);
  return planned;
}

}  // namespace muster::inline v0::detail
