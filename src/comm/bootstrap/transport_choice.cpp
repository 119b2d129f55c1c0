#include "transport_choice.hpp"

#include <algorithm>
#include <deque>

#include <muster/comm/settings.hpp>
#include <muster/core/error.hpp>
#include <muster/core/spec.hpp>

#include "../transports/hierarchical/connect.hpp"
#include "../transports/shm/connect.hpp"

namespace muster::inline v0::detail {
namespace {

std::vector<process_transport>& registered() noexcept {
  static std::vector<process_transport> transports;
  return transports;
}

const process_transport* find_registered(std::string_view name) noexcept {
  for (const auto& made : registered()) {
    if (made.name == name) return &made;
  }
  return nullptr;
}

bool is_of_program(std::string_view name) noexcept {
  const auto* const found = find_registered(name);
  return found != nullptr && found->abilities == nullptr;
}

std::vector<std::string> known_transports() {
  std::vector<std::string> known{"auto", "self", "local", "shm", "mpi", "tcp", "hierarchical"};
  for (const auto& made : registered()) {
    if (is_of_program(made.name)) known.emplace_back(made.name);
  }
  return known;
}

std::string launched_by(const launch_env& launch) {
  return std::string(to_string(launch.kind)) + " started " + std::to_string(launch.size) + " ranks (" + launch.why +
         ")";
}

// Then what the launcher says of hosts does not count.
bool names_host(const settings& configuration) { return configuration.value(setting::host) != "auto"; }

// Refuses settings that contradict each other.
void check_request(const settings& configuration, const launch_env& launch, const std::string& asked, int threads) {
  const std::string origin = configuration.origin(setting::transport);
  if (configuration.value(setting::transport) == asked)
    (void)configuration.choice(setting::transport, known_transports());
  if (launch.size > 1 && threads > 1) {
    throw configuration_error(configuration.origin(setting::ranks) + " asks for " + std::to_string(threads) +
                              " ranks as threads and " + launched_by(launch) +
                              " (a job is one or the other); drop one of them");
  }
  if (launch.size > 1 && (asked == "self" || asked == "local")) {
    throw configuration_error(origin + " asks for transport " + asked + " and " + launched_by(launch) +
                              " (it does not reach other processes); use auto, shm, mpi or tcp");
  }
  if (threads > 1 && asked != "auto" && asked != "local") {
    throw configuration_error(configuration.origin(setting::ranks) + " asks for " + std::to_string(threads) +
                              " ranks as threads and " + origin + " for transport " + asked +
                              " (threads use transport local); drop one of them");
  }
  if (names_host(configuration) && (asked == "shm" || asked == "local" || threads > 1)) {
    throw configuration_error(
        configuration.origin(setting::host) + " gives the host of this rank (and " +
        (asked == "shm" ? origin + " for transport shm that all are on one" : "threads are on one") +
        "); use auto or hierarchical, or leave it out");
  }
  if (asked == "shm" && launch.local_size > 0 && !launch.on_one_host()) {
    throw configuration_error(origin + " asks for transport shm and " + launched_by(launch) + ", " +
                              std::to_string(launch.local_size) +
                              " of them on this host (it does not reach others); use auto, hierarchical, mpi or tcp");
  }
}

// The transport that reaches ranks wherever they are: MPI where the launcher speaks it, as the user has tuned that for
// the network, else TCP. `asked` and `origin`: what was asked for and by what; empty for nothing.
std::string across_hosts(const launch_env& launch, const std::string& asked, const std::string& origin) {
  const bool has_mpi = find_registered("mpi") != nullptr;
  const bool has_tcp = find_registered("tcp") != nullptr;
  if (asked == "mpi" && !has_mpi) {
    throw configuration_error(
        origin +
        " asks for transport mpi (this program was linked without muster::mpi); link muster::muster from a build "
        "with MPI");
  }
  if (asked == "tcp" && !has_tcp) {
    throw configuration_error(
        origin +
        " asks for transport tcp (this program was linked without muster::tcp); link muster::muster from a build "
        "with OpenSSL");
  }
  if (!asked.empty()) return asked;
  if (launch.speaks_mpi() && has_mpi) return "mpi";
  if (has_tcp) return "tcp";
  if (launch.speaks_mpi()) {
    throw configuration_error(
        launched_by(launch) +
        " (this program was linked without muster::mpi); link muster::muster from a build with MPI");
  }
  throw configuration_error(launched_by(launch) +
                            " (the number of hosts is not known, and this program was linked without muster::tcp); use "
                            "--transport shm if all ranks are on one host, mpirun, or --ranks N");
}

}  // namespace

const std::vector<process_transport>& registered_transports() noexcept { return registered(); }

bool register_process_transport(const process_transport& made) noexcept {
  try {
    registered().push_back(made);
    return true;
  } catch (...) {
    return false;
  }
}

transport_choice choose_transport(const settings& configuration, const launch_env& launch, const std::string& asked) {
  const int threads = static_cast<int>(configuration.integer(setting::ranks));
  check_request(configuration, launch, asked, threads);
  const bool is_auto = asked == "auto";
  const std::string origin = configuration.origin(setting::transport);
  const std::string why = is_auto ? launched_by(launch) : origin + " asks for it";

  const bool named = names_host(configuration);
  if (asked == "shm" || (is_auto && launch.size > 1 && launch.on_one_host() && !named))
    return {"shm", {}, 1, is_auto ? why + ", all on this host" : why};
  // Every rank sees that its host has fewer than all.
  const bool on_several_hosts = launch.size > 1 && (launch.local_size > 0 || named);
  if (asked == "hierarchical" || (is_auto && on_several_hosts)) {
    constexpr const char* known[] = {"", "mpi", "tcp"};
    const auto between = configuration.choice(setting::between, {"auto", "mpi", "tcp"});
    const std::string origin_between = configuration.origin(setting::between);
    return {"hierarchical", across_hosts(launch, known[between], origin_between), 1,
            !is_auto ? why
            : named  ? why + ", " + configuration.origin(setting::host) + " gives the host of each rank"
                     : why + ", on several hosts"};
  }
  if (is_of_program(asked)) return {asked, {}, 1, why};
  if (asked == "mpi" || asked == "tcp") return {across_hosts(launch, asked, origin), {}, 1, why};
  if (launch.size > 1) return {across_hosts(launch, "", ""), {}, 1, why};
  if (threads > 1 || asked == "local")
    return {"local", {}, threads, threads > 1 ? configuration.origin(setting::ranks) : why};
  return {"self", {}, 1, is_auto ? launch.why : why};
}

std::unique_ptr<transport> connect_processes(const transport_choice& chosen, const settings& configuration,
                                             const launch_env& launch) {
  if (chosen.name == "shm") return connect_shm(configuration, launch);
  if (chosen.name == "hierarchical")
    return connect_hierarchical(find_registered(chosen.between)->connect(configuration, launch), configuration, launch);
  return find_registered(chosen.name)->connect(configuration, launch);
}

}  // namespace muster::inline v0::detail

namespace muster::inline v0 {

void register_transport(std::string_view name, transport_factory connect) {
  static std::deque<std::string> names;  // which contexts go on to refer to
  detail::require_registrable("transport", name, detail::known_transports(), connect != nullptr);
  detail::register_process_transport({names.emplace_back(name), connect, nullptr});
}

std::unique_ptr<transport> connect_transport(std::string_view name, const settings& configuration,
                                             const launch_env& launch) {
  if (name != "shm" && detail::find_registered(name) == nullptr) {
    throw configuration_error("there is no transport '" + std::string(name) +
                              "' between processes in this program; it is shm, tcp, mpi, or one that it registered");
  }
  return detail::connect_processes({.name = std::string(name)}, configuration, launch);
}

}  // namespace muster::inline v0
