// The description of this build and this process, for `python -m muster info`.
#include <string>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <muster/comm/context.hpp>
#include <muster/core/env.hpp>
#include <muster/data/open.hpp>

#include "module.hpp"

namespace muster::python {
namespace {

nb::list transports() {
  nb::list found;
  for (const auto& abilities : muster::detail::all_transports())
    found.append(nb::str(std::string(abilities.name).c_str()));
  return found;
}

nb::dict described() {
  nb::dict info;
  const settings configuration;
  const launch_env launch = detect_launch();
  const auto planned = muster::detail::plan_world(configuration, launch);
  info["version"] = library_version();
  info["transports"] = transports();
  nb::list sources;
  for (const auto& source : source_table()) sources.append(nb::str(std::string(source.scheme).c_str()));
  info["sources"] = sources;
  info["launcher"] = std::string(to_string(launch.kind));
  info["rank"] = launch.rank;
  info["ranks"] = planned.ranks;
  info["transport"] = std::string(planned.transport.name);
  info["reason"] = planned.reason;
  nb::dict chosen;
  for (const auto* const setting : setting_table()) {
    if (configuration.is_default(*setting)) continue;
    const bool is_secret = setting->name == "token";
    chosen[nb::str(std::string(setting->name).c_str())] =
        is_secret ? std::string("(set)") : configuration.value(*setting);
  }
  info["settings"] = chosen;
  return info;
}

}  // namespace

void define_info(nb::module_& module) {
  module.def("info", &described,
             "Returns a description of this build and of the job that a context would join: version, transports, "
             "sources, launcher, and the settings that are not the defaults.");
  module.def(
      "settings_help", [](bool all) { return settings_help(all); }, nb::arg("all") = false,
      "Returns the settings with their defaults, as lines of text.");
}

}  // namespace muster::python
