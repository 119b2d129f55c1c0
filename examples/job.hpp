// The ranks of an example: the initial ranks, or ranks that join and leave.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <muster/comm/comm_settings.hpp>
#include <muster/comm/context.hpp>
#include <muster/core/error.hpp>
#include <muster/elastic/elastic_settings.hpp>
#include <muster/elastic/step.hpp>
#include <muster/ps/ps_settings.hpp>
#include <muster/train/sync/sync_mode.hpp>
#include <muster/train/tracker.hpp>
#include <muster/train/train_settings.hpp>

namespace examples {

/// Returns the number of ranks with which the job was started.
inline int ranks_of(const muster::context& context) {
  return context.elastic() ? context.launcher().size : context.ranks();
}

/// Returns "4 ranks" or "1 rank".
inline std::string count_of(int count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

/// Returns true if the parameters are stored on servers.
inline bool on_servers(const muster::context& context) {
  return muster::sync_mode_of(context).method == muster::sync_mode::kind::parameter_server;
}

/// Returns the number of ranks that train: all ranks except dedicated servers and hot spares. At least 1; more servers
/// than ranks are rejected elsewhere.
inline int workers_of(const muster::context& context) {
  const auto& settings = context.configuration();
  if (!on_servers(context) || settings.value(muster::setting::servers) == "colocated") return ranks_of(context);
  const auto serving = settings.integer(muster::setting::servers) + settings.integer(muster::setting::standby);
  return std::max(1, ranks_of(context) - static_cast<int>(serving));
}

/// Returns the ranks in the form of a header: "4 ranks (shm)".
inline std::string describe_ranks(const muster::context& context, const muster::group& world) {
  const auto over = " (" + (context.elastic() ? "elastic" : std::string(world.abilities().name)) + ")";
  const auto& settings = context.configuration();
  if (!on_servers(context)) return count_of(ranks_of(context), "rank") + over;
  const int servers = settings.value(muster::setting::servers) == "colocated"
                          ? world.size()
                          : static_cast<int>(settings.integer(muster::setting::servers));
  return count_of(workers_of(context), "worker") + " and " + count_of(servers, "server") + over + ", " +
         settings.value(muster::setting::consistency) + "; epochs are the first worker's";
}

/// Throws if a flag is set that makes workers wait for each other.
inline void refuse_on_servers(const muster::context& context,
                              std::initializer_list<std::pair<std::string, bool>> flags) {
  if (!on_servers(context)) return;
  for (const auto& [flag, is_used] : flags) {
    if (!is_used) continue;
    throw muster::configuration_error(flag +
                                      " cannot be used with --mode ps (workers do not wait for each other); "
                                      "leave it out, or use another mode");
  }
}

/// Adds the settings that determine the numbers of a run to its report: muster's resolved settings, and the program's
/// `own` settings, which override them. A closed task requires equal settings (docs/platform.md).
inline void annotate_settings(muster::tracker& report, const muster::context& context,
                              std::initializer_list<std::pair<std::string_view, std::string>> own) {
  using namespace muster::setting;
  report.annotate("muster", muster::library_version());
  for (const auto* each : {&mode, &compress, &optimizer, &elastic, &algorithm, &servers, &consistency})
    report.annotate(std::string(each->name), context.configuration().value(*each));
  if (on_servers(context)) report.annotate("workers", std::to_string(workers_of(context)));
  for (const auto& [name, text] : own) report.annotate(std::string(name), text);
}

/// Returns the factor for the learning rate when each rank keeps its batch and the number of ranks differs from the
/// initial number (linear scaling: Goyal et al. 2017, https://arxiv.org/abs/1706.02677).
inline double growth(const muster::context& context, const muster::step& step) {
  return context.elastic() ? static_cast<double>(step.group().size()) / ranks_of(context) : 1.0;
}

}  // namespace examples
