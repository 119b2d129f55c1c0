#include "group_configuration.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include <muster/comm/algorithms/chooser.hpp>
#include <muster/comm/algorithms/profile.hpp>
#include <muster/comm/algorithms/registry.hpp>
#include <muster/comm/algorithms/tree.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/settings.hpp>
#include <muster/comm/transports/local.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "../group/group_state.hpp"
#include "../transports/hierarchical/connect.hpp"
#include "../transports/shm/connect.hpp"
#include "transport_choice.hpp"

namespace muster::inline v0::detail {

namespace {

// Puts bytes of rank 0 in place of those of all ranks, before the first collective.
void take_from_rank_zero(group_state& state, std::span<std::byte> bytes, clock::time_point until) {
  const collective_signature none;
  executor f(*state.transport, state.pool, state.scratch, none);
  const task body = tree_broadcast(f, bytes.data(), bytes.size(), 0);
  f.start(body.handle());
  while (!body.finished()) {
    if (f.advance()) continue;
    state.poll_notices();
    if (state.failed()) std::rethrow_exception(state.failure());
    if (clock::now() >= until) {
      throw error(error_kind::timeout,
                  "not all ranks took part in the exchange of settings before the deadline (some did not start or are "
                  "busy); look at the other ranks, or raise --timeout / MUSTER_TIMEOUT");
    }
    state.transport->pause(until);
  }
  if (body.failure()) std::rethrow_exception(body.failure());
}

void tell_difference(const settings& configuration, const setting_info& which, const std::string& of_rank_zero) {
  if (configuration.value(which) == of_rank_zero) return;
  log(log_level::info, configuration.origin(which) + " '" + configuration.value(which) + "' is ignored (rank 0 has '" +
                           of_rank_zero + "', and all ranks use the value of rank 0)");
}

}  // namespace

group_settings settings_for_groups(const settings& configuration, int rank, int ranks_here) {
  group_settings made{.timeout = seconds(configuration.positive(setting::timeout)),
                      .algorithm = algorithm_rules::parse(configuration.value(setting::algorithm),
                                                          configuration.origin(setting::algorithm)),
                      .check_full = configuration.choice(setting::check, {"auto", "full"}) == 1};
  if (rank == 0 && configuration.value(setting::profile) != "none") {
    made.profile = std::make_shared<algorithm_profile>(
        algorithm_profile::load(configuration.value(setting::profile), configuration.origin(setting::profile)));
  }
  // A thread beside the caller's pays where there is a core for it: not where the ranks of the host need all of them.
  const auto progress = configuration.choice(setting::progress, {"auto", "on", "off"});
  const bool has_cores = 2 * static_cast<unsigned>(std::max(ranks_here, 1)) <= std::thread::hardware_concurrency();
  made.progress_thread = progress == 1 || (progress == 0 && has_cores);
  return made;
}

group_settings settings_of_rank_zero(group& world, const group_settings& mine, const settings& configuration) {
  if (world.size() == 1) return mine;
  auto& state = *world.state();
  group_settings agreed = mine;
  try {
    const auto until = deadline_after(mine.timeout);
    // A name has no character 0.
    std::string told;
    if (world.rank() == 0) {
      told = configuration.value(setting::algorithm) + '\0' + configuration.value(setting::profile) + '\0' +
             registered_algorithms() + '\0' + (mine.profile ? mine.profile->to_json() : "");
    }
    std::uint64_t length = told.size();
    take_from_rank_zero(state, std::as_writable_bytes(std::span(&length, 1)), until);
    told.resize(length);
    take_from_rank_zero(state, std::as_writable_bytes(std::span(told)), until);
    if (world.rank() == 0) return agreed;
    const std::string rules = told.c_str();
    const std::string profile = told.c_str() + rules.size() + 1;
    const std::string registered = told.c_str() + rules.size() + profile.size() + 2;
    const std::string measured = told.substr(rules.size() + profile.size() + registered.size() + 3);
    if (registered != registered_algorithms()) {
      throw mismatch_error("rank 0 has registered the algorithms '" + registered + "' and this rank '" +
                           registered_algorithms() +
                           "' (they are numbered in that order); register the same at every rank");
    }
    agreed.algorithm = algorithm_rules::parse(rules, "the algorithm of rank 0");
    agreed.profile = nullptr;
    if (!measured.empty())
      agreed.profile = std::make_shared<algorithm_profile>(algorithm_profile::parse(measured, "the profile of rank 0"));
    tell_difference(configuration, setting::algorithm, rules);
    tell_difference(configuration, setting::profile, profile);
  } catch (...) {
    state.fail(std::current_exception());  // nothing new where it has failed already
  }
  return agreed;
}

void check_for_groups(const group_settings& wanted, const transport_abilities& transport, int ranks) {
  (void)choices(transport, ranks, wanted.algorithm, wanted.profile.get());
  const auto* const measured = wanted.profile.get();
  if (measured == nullptr || ranks == 1 || measured->fits(transport, ranks) || log_rank() > 0) return;
  log(log_level::warning, "the profile is not used (it was measured with " + std::to_string(measured->ranks) +
                              " ranks over " + measured->transport + ", and the group has " + std::to_string(ranks) +
                              " over " + std::string(transport.name) +
                              "); measure them with muster-info --calibrate --save FILE");
}

transport_abilities local_abilities() { return local_transport(std::make_shared<local_hub>(1), 0).abilities(); }

std::vector<transport_abilities> all_transports(double ranks_a_core) {
  std::vector<transport_abilities> all{make_self_transport()->abilities(), local_abilities(), shm_abilities};
  for (const auto& made : registered_transports()) {
    if (made.abilities != nullptr) all.push_back(made.abilities(ranks_a_core));  // of a program's own they are unknown
  }
  return all;
}

planned_world plan_world(const settings& configuration, const launch_env& launch) {
  const transport_choice chosen = choose_transport(configuration, launch);
  planned_world planned;
  planned.ranks = chosen.is_of_processes() ? launch.size : chosen.threads;
  planned.why = chosen.why;
  // Of this host alone: what others have is known when they are connected.
  const double ranks_a_core =
      static_cast<double>(launch.local_size) / std::max(1u, std::thread::hardware_concurrency());
  for (const auto& transport : all_transports(ranks_a_core)) {
    if (transport.name == chosen.name) planned.transport = transport;
    if (transport.name == chosen.between) planned.transport = hierarchical_abilities(transport);
  }
  planned.for_groups = settings_for_groups(configuration, 0, launch.local_size);
  check_for_groups(planned.for_groups, planned.transport, planned.ranks);
  return planned;
}

}  // namespace muster::inline v0::detail
