// muster-info: what this muster was built with, which launcher it finds, and the settings with where each comes from.
// It reads and prints; it starts nothing and connects to nobody.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#ifdef MUSTER_HAS_MPI
#include <mpi.h>
#endif

#include <muster/comm/rendezvous/launch_env.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/version.hpp>

namespace {

using json = nlohmann::ordered_json;

constexpr const char* usage =
    "usage: muster-info [--json] [flags of muster]\n\n"
    "Prints the version, what was built in, the launcher found, and the settings with where each comes from.\n"
    "  --json    the same as one JSON object\n"
    "  --help    this\n\n"
    "flags of muster, shown as a program would take them:\n";

struct arguments {
  bool as_json = false;
  bool help = false;
};

arguments parse(int argc, char** argv) {
  arguments chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string word(argv[i]);
    if (word == "--json") {
      chosen.as_json = true;
    } else if (word == "--help" || word == "-h") {
      chosen.help = true;
    } else {
      std::vector<std::string> known = {"--json", "--help"};
      for (const auto& row : muster::setting_table()) known.push_back("--" + std::string(row.name));
      const auto meant = muster::closest(word.substr(0, word.find('=')), known);
      throw muster::configuration_error("unknown argument '" + word +
                                        "' (neither a flag of muster-info nor a setting); " +
                                        (meant ? "did you mean " + *meant + "?" : "--help lists all"));
    }
  }
  return chosen;
}

std::string version() {
  return std::to_string(MUSTER_VERSION_MAJOR) + "." + std::to_string(MUSTER_VERSION_MINOR) + "." +
         std::to_string(MUSTER_VERSION_PATCH);
}

std::string compiler() {
#ifdef __clang__
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

/// The library that is loaded, which need not be the one that was there at build time; empty without MPI.
std::string mpi_library() {
#ifdef MUSTER_HAS_MPI
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);  // one of the few calls that are allowed before MPI_Init
  return {text, std::strcspn(text, ",\n")};
#else
  return {};
#endif
}

constexpr bool has_zlib() {
#ifdef MUSTER_HAS_ZLIB
  return true;
#else
  return false;
#endif
}

json describe_build() {
  json build = {{"version", version()}, {"compiler", compiler()}, {"build_type", MUSTER_BUILD_TYPE}};
  build["parts"] = {"core"};
  if (const auto library = mpi_library(); !library.empty()) {
    build["parts"].push_back("mpi");
    build["mpi_library"] = library;
  }
  if (has_zlib()) build["parts"].push_back("zlib");
  return build;
}

json describe_launcher(const muster::launch_env& launch) {
  return {{"name", muster::to_string(launch.kind)},
          {"why", launch.why},
          {"rank", launch.rank},
          {"size", launch.size},
          {"local_rank", launch.local_rank}};
}

json describe_settings(const muster::settings& settings) {
  json all = json::object();
  for (const auto& row : muster::setting_table()) {
    all[std::string(row.name)] = {
        {"value", settings.value(row.id)}, {"origin", settings.origin(row.id)}, {"variable", row.variable}};
  }
  return all;
}

void print(const json& report) {
  const auto& build = report["build"];
  std::string parts;
  for (const auto& part : build["parts"]) parts += (parts.empty() ? "" : ", ") + part.get<std::string>();
  const auto text = [](const json& value) { return value.get<std::string>(); };
  std::printf("muster %s (%s, %s)\n", text(build["version"]).c_str(), text(build["compiler"]).c_str(),
              text(build["build_type"]).c_str());
  std::printf("built with  %s\n", parts.c_str());
  if (build.contains("mpi_library")) std::printf("MPI         %s\n", text(build["mpi_library"]).c_str());
  const auto& launch = report["launcher"];
  std::printf("launcher    %s (%s): rank %d of %d\n", text(launch["name"]).c_str(), text(launch["why"]).c_str(),
              launch["rank"].get<int>(), launch["size"].get<int>());
  std::printf("settings\n");
  for (const auto& [name, setting] : report["settings"].items()) {
    std::printf("  %-12s%-12s%s\n", name.c_str(), text(setting["value"]).c_str(), text(setting["origin"]).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const muster::settings settings(argc, argv);
    const auto chosen = parse(argc, argv);
    if (chosen.help) {
      std::printf("%s%s", usage, muster::settings_help().c_str());
      return 0;
    }
    const auto launch = muster::detect_launch();
    if (launch.rank != 0) return 0;  // under a launcher one of the ranks says it
    const json report = {{"build", describe_build()},
                         {"launcher", describe_launcher(launch)},
                         {"settings", describe_settings(settings)}};
    if (chosen.as_json) {
      std::printf("%s\n", report.dump(2, ' ', false, json::error_handler_t::replace).c_str());
    } else {
      print(report);
    }
    return 0;
  } catch (...) {
    std::fprintf(stderr, "muster-info: %s\n", muster::describe(std::current_exception()).c_str());
    return muster::exit_status_of(std::current_exception());
  }
}
