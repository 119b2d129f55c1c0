#pragma once

#include <muster/comm/bootstrap/transport_choice.hpp>

#include <algorithm>
#include <deque>
#include <thread>

#include <muster/comm/algorithms/registry.hpp>
#include <muster/comm/algorithms/tree.hpp>
#include <muster/comm/group/group_state.hpp>
#include <muster/comm/transports/hierarchical/connect_hierarchical.hpp>
#include <muster/comm/transports/shm/connect_shm.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/spec.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline std::vector<process_transport>& registered() noexcept {
  static std::vector<process_transport> transports;
  return transports;
}

// Returns true if the program itself has registered the transport (`register_transport`).
inline bool is_of_program(std::string_view name) noexcept {
  const auto* const found = find_registered(name);
  return found != nullptr && found->abilities == nullptr;
}

inline std::vector<std::string> known_transports() {
  std::vector<std::string> names{"auto", "self", "threads", "shm", "mpi", "tcp", "hierarchical"};
  for (const auto& entry : registered()) {
    if (is_of_program(entry.name)) names.emplace_back(entry.name);
  }
  return names;
}

inline std::string launched_by(const launch_env& launch) {
  return std::string(to_string(launch.kind)) + " started " + std::to_string(launch.size) + " ranks (" + launch.reason +
         ")";
}

// Returns true if `--host` names the host. The launcher's information about hosts is then ignored.
inline bool names_host(const settings& configuration) { return configuration.value(setting::host) != "auto"; }

// Refuses settings that contradict each other.
inline void check_request(const settings& configuration, const launch_env& launch, const std::string& requested,
                          int threads) {
  const std::string origin = configuration.origin(setting::transport);
  if (configuration.value(setting::transport) == requested)
    (void)configuration.choice(setting::transport, known_transports());
  if (launch.size > 1 && threads > 1) {
    throw configuration_error(configuration.origin(setting::ranks) + " asks for " + std::to_string(threads) +
                              " ranks as threads and " + launched_by(launch) +
                              " (a job is one or the other); drop one setting");
  }
  if (launch.size > 1 && (requested == "self" || requested == "threads")) {
    throw configuration_error(origin + " asks for transport " + requested + " and " + launched_by(launch) +
                              " (it does not reach other processes); use auto, shm, mpi or tcp");
  }
  if (threads > 1 && requested != "auto" && requested != "threads") {
    throw configuration_error(configuration.origin(setting::ranks) + " asks for " + std::to_string(threads) +
                              " ranks as threads and " + origin + " for transport " + requested +
                              " (threads use transport threads); drop one setting");
  }
  if (names_host(configuration) && (requested == "shm" || requested == "threads" || threads > 1)) {
    throw configuration_error(
        configuration.origin(setting::host) + " sets the host of the rank (and " +
        (requested == "shm" ? origin + " for transport shm that all are on one" : "threads are on one") +
        "); use auto or hierarchical, or leave it out");
  }
  if (requested == "shm" && launch.local_size > 0 && !launch.on_one_host()) {
    throw configuration_error(origin + " asks for transport shm and " + launched_by(launch) + ", " +
                              std::to_string(launch.local_size) +
                              " on this host (it does not reach others); use auto, hierarchical, mpi or tcp");
  }
}

// Returns the transport that reaches ranks on any host: MPI if the launcher supports it, since the user has tuned it
// for the network, else TCP. `requested` and `origin`: the requested transport and the setting that requests it; empty
// if none.
inline std::string across_hosts(const launch_env& launch, const std::string& requested, const std::string& origin) {
  if (!requested.empty() && find_registered(requested) == nullptr) {
    throw configuration_error(origin + " asks for transport " + requested + " (" + linked_without(requested) +
                              "); link muster::" + requested + " from a build with " +
                              (requested == "mpi" ? "MPI" : "OpenSSL"));
  }
  if (!requested.empty()) return requested;
  if (launch.speaks_mpi() && find_registered("mpi") != nullptr) return "mpi";
  if (find_registered("tcp") != nullptr) return "tcp";
  if (launch.speaks_mpi()) {
    throw configuration_error(launched_by(launch) + " (" + linked_without("mpi") +
                              "); link muster::mpi from a build with MPI");
  }
  throw configuration_error(launched_by(launch) + " (the number of hosts is not known, and " + linked_without("tcp") +
                            "); link muster::tcp, use "
                            "--transport shm if all ranks are on one host, or mpirun, or --ranks N");
}

// Replaces every rank's bytes by the bytes of rank 0, before the first collective.
inline void take_from_rank_zero(group_state& state, std::span<std::byte> bytes, clock::time_point until) {
  const collective_signature none;
  collective_context f(*state.transport, state.pool, state.scratch, none);
  const task body = tree_broadcast(f, bytes.data(), bytes.size(), 0);
  f.start(body.handle());
  while (!body.finished()) {
    if (f.advance()) continue;
    state.handle_control_messages();
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

MUSTER_INLINE const process_transport* find_registered(std::string_view name) noexcept {
  for (const auto& entry : registered()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

MUSTER_INLINE void register_process_transport(const process_transport& entry) { registered().push_back(entry); }

MUSTER_INLINE transport_choice choose_transport(const settings& configuration, const launch_env& launch,
                                                const std::string& requested) {
  const int threads = static_cast<int>(configuration.integer(setting::ranks));
  check_request(configuration, launch, requested, threads);
  const bool is_auto = requested == "auto";
  const std::string origin = configuration.origin(setting::transport);
  const std::string reason = is_auto ? launched_by(launch) : origin + " asks for it";

  const bool host_is_named = names_host(configuration);
  if (requested == "shm" || (is_auto && launch.size > 1 && launch.on_one_host() && !host_is_named))
    return {"shm", {}, 1, is_auto ? reason + ", all on this host" : reason};
  // Every rank detects that its host has fewer ranks than the job.
  const bool on_several_hosts = launch.size > 1 && (launch.local_size > 0 || host_is_named);
  if (requested == "hierarchical" || (is_auto && on_several_hosts)) {
    constexpr const char* transports[] = {"", "mpi", "tcp"};
    const auto between = configuration.choice(setting::between, {"auto", "mpi", "tcp"});
    const std::string origin_between = configuration.origin(setting::between);
    return {"hierarchical", across_hosts(launch, transports[between], origin_between), 1,
            !is_auto        ? reason
            : host_is_named ? reason + ", " + configuration.origin(setting::host) + " sets each rank's host"
                            : reason + ", on several hosts"};
  }
  if (is_of_program(requested)) return {requested, {}, 1, reason};
  if (requested == "mpi" || requested == "tcp") return {across_hosts(launch, requested, origin), {}, 1, reason};
  if (launch.size > 1) return {across_hosts(launch, "", ""), {}, 1, reason};
  if (threads > 1 || requested == "threads")
    return {"threads", {}, threads, threads > 1 ? configuration.origin(setting::ranks) : reason};
  return {"self", {}, 1, is_auto ? launch.reason : reason};
}

MUSTER_INLINE std::unique_ptr<transport> connect_processes(const transport_choice& choice,
                                                           const settings& configuration, const launch_env& launch) {
  if (choice.name == "shm") return connect_shm(configuration, launch);
  if (choice.name == "hierarchical")
    return connect_hierarchical(find_registered(choice.network)->connect(configuration, launch), configuration, launch);
  return find_registered(choice.name)->connect(configuration, launch);
}

// ---- settings of the groups ----

MUSTER_INLINE group_settings settings_for_groups(const settings& configuration, int local_ranks) {
  // A progress thread beside the caller's thread is useful only if it has a core, which is not so if the ranks of the
  // host occupy all cores.
  const auto progress = configuration.choice(setting::progress, {"auto", "on", "off"});
  const bool has_cores = 2 * static_cast<unsigned>(std::max(local_ranks, 1)) <= std::thread::hardware_concurrency();
  return {.timeout = seconds(configuration.number(setting::timeout)),
          .algorithm =
              algorithm_rules::parse(configuration.value(setting::algorithm), configuration.origin(setting::algorithm)),
          .check_full = configuration.choice(setting::check, {"auto", "full"}) == 1,
          .progress_thread = progress == 1 || (progress == 0 && has_cores)};
}

MUSTER_INLINE group_settings settings_of_rank_zero(group& world, const group_settings& mine,
                                                   const settings& configuration) {
  if (world.size() == 1) return mine;
  auto& state = *world.state();
  group_settings agreed = mine;
  try {
    const auto until = deadline_after(mine.timeout);
    std::string message;  // '\n' separates the two texts, since no rule contains it
    if (world.rank() == 0) message = configuration.value(setting::algorithm) + "\n" + registered_algorithms();
    std::uint64_t length = message.size();
    take_from_rank_zero(state, std::as_writable_bytes(std::span(&length, 1)), until);
    message.resize(length);
    take_from_rank_zero(state, std::as_writable_bytes(std::span(message)), until);
    if (world.rank() == 0) return agreed;
    const std::string rules = message.substr(0, message.find('\n'));
    const std::string registered = message.substr(rules.size() + 1);
    if (registered != registered_algorithms()) {
      throw mismatch_error("rank 0 has registered the algorithms '" + registered + "' and this rank '" +
                           registered_algorithms() +
                           "' (they are numbered in that order); register the same at every rank");
    }
    agreed.algorithm = algorithm_rules::parse(rules, "the algorithm of rank 0");
    if (const auto& own_rules = configuration.value(setting::algorithm); own_rules != rules) {
      log(log_level::info, configuration.origin(setting::algorithm) + " '" + own_rules + "' is ignored (rank 0 has '" +
                               rules + "', and all ranks use the value of rank 0)");
    }
  } catch (...) {
    state.fail(std::current_exception());  // no effect if the group has already failed
  }
  return agreed;
}

MUSTER_INLINE transport_abilities thread_abilities() {
  return thread_transport(std::make_shared<thread_hub>(1), 0).abilities();
}

MUSTER_INLINE std::vector<transport_abilities> all_transports(double ranks_a_core) {
  std::vector<transport_abilities> all{make_self_transport()->abilities(), thread_abilities(), shm_abilities};
  for (const auto& entry : registered()) {
    // The abilities of a program's own transport are unknown.
    if (entry.abilities != nullptr) all.push_back(entry.abilities(ranks_a_core));
  }
  return all;
}

MUSTER_INLINE planned_world plan_world(const settings& configuration, const launch_env& launch) {
  const transport_choice chosen = choose_transport(configuration, launch);
  planned_world planned;
  planned.ranks = chosen.is_of_processes() ? launch.size : chosen.threads;
  planned.reason = chosen.reason;
  // Uses the local host's load alone: the load of other hosts is unknown before they are connected.
  const double ranks_a_core =
      static_cast<double>(launch.local_size) / std::max(1u, std::thread::hardware_concurrency());
  for (const auto& transport : all_transports(ranks_a_core)) {
    if (transport.name == chosen.name) planned.transport = transport;
    if (transport.name == chosen.network) planned.transport = hierarchical_abilities(transport);
  }
  planned.for_groups = settings_for_groups(configuration, launch.local_size);
  return planned;
}

}}}  // namespace muster::v0::detail

namespace muster { inline namespace v0 {

MUSTER_INLINE void register_transport(std::string_view name, transport_factory connect) {
  static std::deque<std::string> names;  // contexts keep references to the names
  detail::require_registrable("transport", name, detail::known_transports(), connect != nullptr);
  detail::register_process_transport({names.emplace_back(name), connect, nullptr});
}

MUSTER_INLINE std::unique_ptr<transport> connect_transport(std::string_view name, const settings& configuration,
                                                           const launch_env& launch) {
  const bool is_hierarchical = name == "hierarchical";
  if (name != "shm" && !is_hierarchical && detail::find_registered(name) == nullptr) {
    throw configuration_error(
        "there is no transport '" + std::string(name) +
        "' between processes in this program; it is shm, tcp, mpi, hierarchical, or a transport that it registered");
  }
  detail::transport_choice chosen{.name = std::string(name)};
  if (is_hierarchical) chosen.network = detail::across_hosts(launch, "", "");
  return detail::connect_processes(chosen, configuration, launch);
}

}}  // namespace muster::v0
