// muster-info: prints this build's features, the detected launcher, the choices of algorithms, and all settings
// with their sources. It connects to no process unless it is asked to measure.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#ifdef MUSTER_HAS_MPI
#include <mpi.h>
#endif

#include <muster/comm/algorithms/calibrate.hpp>
#include <muster/comm/algorithms/chooser.hpp>
#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/comm/context.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>
#include <muster/core/progress.hpp>

#include <muster/core/text.hpp>
#include "check.hpp"
#include "print.hpp"
#include "run_program.hpp"
#include "top.hpp"

namespace {

constexpr const char* usage =
    "usage: muster-info [--json] [--calibrate [--save FILE]] [flags of muster]\n"
    "       muster-info top [--json] [--here] [--job NAME] [--rendezvous WHERE] [--token TEXT]\n"
    "       muster-info check [--json] [--listen PORT | --reach HOST:PORT]\n\n"
    "Prints the version, the parts that were built in, the launcher, the transports with their costs, the algorithm\n"
    "that the launched world (or --ranks N) would choose at each size, and the settings with their origin.\n"
    "  --calibrate    under mpirun or with --ranks N: measures all algorithms in this world and prints the times, and\n"
    "                 the rules that choose the fastest\n"
    "  --save FILE    also writes the rules, for --algorithm / MUSTER_ALGORITHM\n"
    "  --json         prints one JSON object\n"
    "  top            of a running elastic job: the steps of each rank, and what traffic shows of its connections; on "
    "a\n"
    "                 terminal again each second, else once. Finds a job of this host; others by --rendezvous\n"
    "  --here         ranks on this host, once: status 0 when they answer, 1 when none is in the group, 3 when\n"
    "                 a rank does not answer (docs/kubernetes.md uses it in probes)\n"
    "  check          prints the faults of this machine in the order in which to mend them, each with the line that\n"
    "                 mends it: limits, cores, shared memory, MPI, clocks; status 1 if there is any\n"
    "  --listen WHERE  a port: check also tries connections with another host, where muster-info check --reach runs; "
    "0: any "
    "port\n"
    "  --reach WHERE  HOST:PORT of a host where muster-info check --listen waits\n"
    "  --help         prints this text\n";

struct arguments {
  bool as_json = false;
  bool calibrate = false;
  std::string save;
};

arguments parse(int argc, char** argv) {
  arguments chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string word(argv[i]);
    if (word == "--json") {
      chosen.as_json = true;
    } else if (word == "--calibrate") {
      chosen.calibrate = true;
    } else if (word.starts_with("--save=")) {
      chosen.save = word.substr(7);
    } else if (word == "--save") {
      if (i + 1 == argc) {
        throw muster::configuration_error(
            "--save needs a value (it is the last word of the command line): write --save FILE");
      }
      chosen.save = argv[++i];
    } else {
      throw muster::unknown_argument(word, {"--json", "--calibrate", "--save"});
    }
  }
  if (!chosen.save.empty() && !chosen.calibrate) {
    throw muster::configuration_error("--save has nothing to save (nothing is measured); add --calibrate");
  }
  return chosen;
}

check_options parse_check(int argc, char** argv) {
  check_options chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string word(argv[i]);
    const bool has_value = i + 1 < argc;
    if (word == "--json") {
      chosen.as_json = true;
    } else if (word == "--listen" && has_value) {
      const auto port = muster::parse_number<std::uint16_t>(argv[++i]);
      if (!port) {
        throw muster::configuration_error("--listen '" + std::string(argv[i]) +
                                          "' is no port (it is a number from 0 to 65535); write --listen 0 for any");
      }
      chosen.listen = *port;
    } else if (word == "--reach" && has_value) {
      chosen.reach = argv[++i];
    } else if (word == "--listen" || word == "--reach") {
      throw muster::configuration_error(
          word + " needs a value (it is the last word of the command line); write it after the flag");
    } else {
      throw muster::unknown_argument(word, {"--json", "--listen", "--reach"});
    }
  }
  return chosen;
}

std::string compiler() {
#ifdef __clang__
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

/// Returns the version of the loaded MPI library, which may differ from the version at build time; empty without MPI.
std::string mpi_library() {
#ifdef MUSTER_HAS_MPI
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);  // This call is allowed before MPI_Init.
  return {text, std::strcspn(text, ",\n")};
#else
  return {};
#endif
}

/// Returns true if this build's MPI supports continuing when ranks die.
#ifdef MUSTER_HAVE_ULFM
constexpr bool survives_deaths = true;
#else
constexpr bool survives_deaths = false;
#endif

json describe_build() {
  json build = {{"version", muster::library_version()}, {"compiler", compiler()}, {"build_type", MUSTER_BUILD_TYPE}};
  for (const auto part : muster::detail::split(MUSTER_PARTS, ' ')) build["parts"].push_back(std::string(part));
  if (const auto library = mpi_library(); !library.empty()) {
    build["mpi_library"] = library;
    build["mpi_ulfm"] = survives_deaths;
  }
  return build;
}

json describe_launcher(const muster::launch_env& launch) {
  return {{"name", muster::to_string(launch.kind)},
          {"why", launch.reason},
          {"rank", launch.rank},
          {"size", launch.size},
          {"local_rank", launch.local_rank}};
}

json describe_settings(const muster::settings& settings) {
  json all = json::object();
  for (const auto* row : muster::setting_table()) {
    // Reports are passed on to others, who must not read the token.
    const bool is_secret = row->name == muster::setting::token.name && !settings.is_default(*row);
    all[std::string(row->name)] = {{"value", is_secret ? "(secret)" : settings.value(*row)},
                                   {"origin", settings.origin(*row)},
                                   {"variable", row->variable()}};
  }
  return all;
}

json describe_costs(const muster::transport_costs& costs) {
  return {{"latency", costs.latency}, {"per_byte", costs.per_byte}, {"reduce_per_byte", costs.reduce_per_byte}};
}

json describe_transports() {
  json all = json::object();
  for (const auto& transport : muster::detail::all_transports()) {
    auto& entry = all[std::string(transport.name)] = describe_costs(transport.costs);
    entry["native_collectives"] = transport.native_collectives;
    entry["native_first"] = transport.prefers_native;
  }
  return all;
}

/// Returns each collective's choice, as rules.
json describe_choices(const muster::detail::planned_world& planned) {
  json all = json::object();
  if (planned.ranks == 1) return all;  // There is no other rank.
  const muster::algorithm_selector chosen(planned.transport, planned.ranks, planned.for_groups.algorithm);
  for (const auto kind : muster::all_collectives) {
    std::string rules;
    std::size_t low = 0;
    for (const auto& row : chosen.rows(kind)) {
      rules +=
          (rules.empty() ? "" : ",") + to_string(muster::algorithm_rules::rule{kind, low, row.below, row.algorithm});
      low = row.below;
    }
    all[std::string(to_string(kind))] = rules;
  }
  return all;
}

int describe_all(int argc, char** argv) {
  const muster::settings settings(argc, argv);
  if (const auto text = muster::output_for(settings.requested(), usage); !text.empty()) {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  const auto chosen = parse(argc, argv);
  settings.check_numbers();
  const auto launch = muster::detect_launch();
  if (launch.rank != 0) return 0;  // Under a launcher, only rank 0 prints.
  json report = {
      {"build", describe_build()}, {"launcher", describe_launcher(launch)}, {"transports", describe_transports()}};
  try {  // Shows the settings of a program that is started in the same way.
    const auto planned = muster::detail::plan_world(settings, launch);
    report["world"] = {{"transport", planned.transport.name}, {"ranks", planned.ranks}, {"why", planned.reason}};
    report["choices"] = describe_choices(planned);
  } catch (const muster::configuration_error& refused) {
    report["world"] = {{"error", refused.what()}};
  }
  report["settings"] = describe_settings(settings);
  show(report, chosen.as_json);
  return 0;
}

void measure(muster::context& context, const arguments& chosen) {
  if (context.ranks() == 1) {
    throw muster::configuration_error(
        "--calibrate has nothing to measure (one rank sends no messages); start it with mpirun, or add --ranks N");
  }
  context.run([&](muster::group& world) {
    if (world.rank() == 0 && !chosen.save.empty()) muster::require_writable(chosen.save);
    muster::progress_line progress(world.rank() == 0);
    const auto start = muster::clock::now();
    const auto times = muster::calibrate(world, [&](muster::collective kind, std::size_t bytes) {
      if (!progress.is_due()) return;
      progress.update("measures " + std::string(to_string(kind)) + " of " + muster::format_bytes(bytes) + ", " +
                      muster::detail::duration_text(muster::seconds_since(start)));
    });
    progress.clear();
    if (world.rank() != 0) return;
    const std::string rules = muster::fastest(times).to_string();
    if (!chosen.save.empty()) muster::write_atomically(chosen.save, rules + "\n");
    const auto abilities = world.abilities();
    json report = {{"muster", muster::library_version()}, {"transport", abilities.name}, {"ranks", world.size()}};
    for (const auto& t : times) {  // Of the slowest rank, the median.
      auto& of_size = report[std::string(to_string(t.kind)) + "_us"][muster::format_bytes(t.bytes)];
      of_size[std::string(to_string(t.algorithm))] = std::round(1e8 * t.seconds) / 100;
    }
    report["constants"] = describe_costs(muster::fit_costs(times, world.size(), abilities.costs));
    report["rules"] = rules;
    show(report, chosen.as_json);
  });
}

}  // namespace

int main(int argc, char** argv) {
  // Detects this word first, because it decides whether the program connects.
  const auto has = [&](std::string_view word) { return std::find(argv + 1, argv + argc, word) != argv + argc; };
  if (has("--calibrate")) {
    const auto body = [&](muster::context& context) { measure(context, parse(argc, argv)); };
    return muster::run_main(argc, argv, body, {.help = [] { return std::string(usage); }});
  }
  return run_program("muster-info", [&] {
    if (argc > 1 && std::string_view(argv[1]) == "top") return watch_job(argc - 1, argv + 1, usage);
    // --check with a value is a setting.
    if (argc > 1 && (std::string_view(argv[1]) == "check" ||
                     (std::string_view(argv[1]) == "--check" && (argc == 2 || argv[2][0] == '-')))) {
      if (has("--help")) return std::fputs(usage, stdout) < 0 ? 1 : 0;
      return check_machine(parse_check(argc - 1, argv + 1), mpi_library());
    }
    return describe_all(argc, argv);
  });
}
