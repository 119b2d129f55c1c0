#include "transport_choice.hpp"

#include <algorithm>
#include <deque>
#include <thread>

#include <muster/comm/algorithms/registry.hpp>
#include <muster/comm/algorithms/tree.hpp>
#include <muster/comm/transports/local.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/core/spec.hpp>

#include "../group/group_state.hpp"
#include "../transports/hierarchical/connect.hpp"
#include "../transports/shm/connect.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

std::vector<process_transport>& registered() noexcept {
  static std::vector<process_transport> transports;
  return transports;
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
  if (!asked.empty() && find_registered(asked) == nullptr) {
    throw configuration_error(origin + " asks for transport " + asked +
                              " (this program was linked without muster::" + asked +
                              "); link muster::muster from a build with " + (asked == "mpi" ? "MPI" : "OpenSSL"));
  }
  if (!asked.empty()) return asked;
  if (launch.speaks_mpi() && find_registered("mpi") != nullptr) return "mpi";
  if (find_registered("tcp") != nullptr) return "tcp";
  if (launch.speaks_mpi()) {
    throw configuration_error(
        launched_by(launch) +
        " (this program was linked without muster::mpi); link muster::muster from a build with MPI");
  }
  throw configuration_error(launched_by(launch) +
                            " (the number of hosts is not known, and this program was linked without muster::tcp); use "
                            "--transport shm if all ranks are on one host, mpirun, or --ranks N");
}

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

}  // namespace

const process_transport* find_registered(std::string_view name) noexcept {
  for (const auto& made : registered()) {
    if (made.name == name) return &made;
  }
  return nullptr;
}

bool register_process_transport(const process_transport& made) {
  registered().push_back(made);
  return true;
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

// ---- what its groups are ----

group_settings settings_for_groups(const settings& configuration, int ranks_here) {
  // A thread beside the caller's pays where there is a core for it: not where the ranks of the host need all of them.
  const auto progress = configuration.choice(setting::progress, {"auto", "on", "off"});
  const bool has_cores = 2 * static_cast<unsigned>(std::max(ranks_here, 1)) <= std::thread::hardware_concurrency();
  return {.timeout = seconds(configuration.positive(setting::timeout)),
          .algorithm =
              algorithm_rules::parse(configuration.value(setting::algorithm), configuration.origin(setting::algorithm)),
          .check_full = configuration.choice(setting::check, {"auto", "full"}) == 1,
          .progress_thread = progress == 1 || (progress == 0 && has_cores)};
}

group_settings settings_of_rank_zero(group& world, const group_settings& mine, const settings& configuration) {
  if (world.size() == 1) return mine;
  auto& state = *world.state();
  group_settings agreed = mine;
  try {
    const auto until = deadline_after(mine.timeout);
    std::string told;  // no rule has a line's end
    if (world.rank() == 0) told = configuration.value(setting::algorithm) + "\n" + registered_algorithms();
    std::uint64_t length = told.size();
    take_from_rank_zero(state, std::as_writable_bytes(std::span(&length, 1)), until);
    told.resize(length);
    take_from_rank_zero(state, std::as_writable_bytes(std::span(told)), until);
    if (world.rank() == 0) return agreed;
    const std::string rules = told.substr(0, told.find('\n'));
    const std::string registered = told.substr(rules.size() + 1);
    if (registered != registered_algorithms()) {
      throw mismatch_error("rank 0 has registered the algorithms '" + registered + "' and this rank '" +
                           registered_algorithms() +
                           "' (they are numbered in that order); register the same at every rank");
    }
    agreed.algorithm = algorithm_rules::parse(rules, "the algorithm of rank 0");
    if (const auto& mine_said = configuration.value(setting::algorithm); mine_said != rules) {
      log(log_level::info, configuration.origin(setting::algorithm) + " '" + mine_said + "' is ignored (rank 0 has '" +
                               rules + "', and all ranks use the value of rank 0)");
    }
  } catch (...) {
    state.fail(std::current_exception());  // nothing new where it has failed already
  }
  return agreed;
}

transport_abilities local_abilities() { return local_transport(std::make_shared<local_hub>(1), 0).abilities(); }

std::vector<transport_abilities> all_transports(double ranks_a_core) {
  std::vector<transport_abilities> all{make_self_transport()->abilities(), local_abilities(), shm_abilities};
  for (const auto& made : registered()) {
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
  planned.for_groups = settings_for_groups(configuration, launch.local_size);
  return planned;
}

}}}  // namespace muster::v0::detail

namespace muster { inline namespace v0 {

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

}}  // namespace muster::v0
