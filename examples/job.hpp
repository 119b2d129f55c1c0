// The ranks of an example: those it was started with, or ranks that come and go.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <muster/comm/context.hpp>
#include <muster/comm/settings.hpp>
#include <muster/elastic/settings.hpp>
#include <muster/elastic/step.hpp>
#include <muster/ps/settings.hpp>
#include <muster/train/settings.hpp>
#include <muster/train/tracker.hpp>

namespace examples {

/// Ranks that the job was started with.
inline int ranks_of(const muster::context& context) {
  return context.elastic() ? context.launcher().size : context.ranks();
}

/// "4 ranks", "1 rank".
inline std::string count_of(int count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what) + (count == 1 ? "" : "s");
}

/// As a header names them: "4 ranks (shm)".
inline std::string describe_ranks(const muster::context& context, const muster::group& world) {
  return count_of(ranks_of(context), "rank") + " (" +
         (context.elastic() ? "elastic" : std::string(world.abilities().name)) + ")";
}

/// What decides the numbers of a run, in its report: muster's settings as they were resolved, and the program's `own`,
/// which win. A closed task has them compared (docs/platform.md).
inline void annotate_settings(muster::tracker& report, const muster::settings& resolved,
                              std::initializer_list<std::pair<std::string_view, std::string>> own) {
  using namespace muster::setting;
  report.annotate("muster", muster::library_version());
  for (const auto* each : {&mode, &compress, &optimizer, &elastic, &algorithm, &servers, &consistency})
    report.annotate(std::string(each->name), resolved.value(*each));
  for (const auto& [name, text] : own) report.annotate(std::string(name), text);
}

/// What the learning rate is multiplied by where each rank keeps its batch and there are more or fewer than `at_start`
/// (linear scaling: Goyal et al. 2017, https://arxiv.org/abs/1706.02677).
inline double growth(const muster::step& step, int at_start) {
  return static_cast<double>(step.group().size()) / at_start;
}

}  // namespace examples
