#pragma once

#include <muster/comm/bootstrap/assembly.hpp>

#include <algorithm>
#include <sstream>
#include <string>

#include <muster/comm/bootstrap/exchange.hpp>
#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
// Entries in the store end with the process that wrote them, so that a failed start does not block the next one.
inline constexpr auto passing = store_life::of_client;
inline constexpr const char* key_of_launch = "starts/launch";
inline constexpr const char* job_has_begun = "begun";
inline constexpr const char* prefix_of_meeting = "starts/met";

inline std::string key_of_server(int server) { return "starts/server/" + std::to_string(server); }

// The record that rank 0 writes for processes that are started separately.
struct announcement {
  int ranks = 0;
  int servers = 0;
  std::string job;

  [[nodiscard]] std::string text() const { return std::to_string(ranks) + " " + std::to_string(servers) + " " + job; }
  [[nodiscard]] static announcement read(const std::string& text, const std::string& where) {
    announcement result;
    std::istringstream in(text);
    in >> result.ranks >> result.servers;
    std::getline(in.ignore(), result.job);
    if (in && result.ranks > 0 && result.servers > 0) return result;
    throw configuration_error(
        "the record of the job in the store " + where +
        " cannot be read (another version of muster may have written it); start all processes with the same build");
  }
};

// Throws configuration_error for settings with which separately started processes cannot form a job. `origin`: the
// setting that requests such a job.
inline void check(const settings& configuration, const std::string& origin) {
  const auto refuse = [&](const setting_info& setting, const std::string& reason) {
    throw configuration_error(origin + " cannot be used with --" + std::string(setting.name) + " " +
                              configuration.value(setting) + " (" + reason);
  };
  const auto& transport = configuration.value(setting::transport);
  if (transport == "mpi" || transport == "self" || transport == "threads")
    refuse(setting::transport,
           "it does not connect processes of different launches); use auto, tcp, shm or hierarchical");
  if (configuration.value(setting::elastic) == "on")
    refuse(setting::elastic, "an elastic job has no separately launched servers); remove one option");
  if (configuration.integer(setting::ranks) > 1)
    refuse(setting::ranks, "processes cannot join ranks that are threads); start the workers with a launcher");
  const auto& where = configuration.value(setting::rendezvous);
  if (where == "auto")
    refuse(setting::rendezvous,
           "processes of different launches have no common launcher to find each other by); set --rendezvous "
           "tcp://HOST:PORT, HOST being rank 0's, or file:/FOLDER");
  if (!where.starts_with("tcp://") && configuration.value(setting::job) == "auto")
    refuse(setting::job, "auto is the name of a single launch, and the ranks find the job at " + where +
                             " by its name); set the same --job for all processes");
}

// Writes the record of rank 0. Throws configuration_error if the store has such a record.
inline void announce(any_store& store, const announcement& job, clock::time_point until) {
  if (!store.compare_and_swap(key_of_launch, 0, job.text(), until, passing).swapped) {
    throw configuration_error("another job waits for its servers at " + store.where() +
                              " (two jobs use one store); give each job its own store, or its own --job");
  }
}

// Waits for the record of rank 0 and returns it. Throws timeout_error, and configuration_error if the job has begun.
inline announcement await_announcement(any_store& store, clock::time_point until) {
  const auto found = store.watch(key_of_launch, 0, until);
  if (found && found->value == job_has_begun) {
    throw configuration_error(
        "the job at " + store.where() +
        " has started already (all its remote servers have joined); start it with more --remote-servers");
  }
  if (found && *found) return announcement::read(found->value, store.where());
  throw timeout_error("start", {0},
                      "no job at " + store.where() +
                          " waited for servers in time (missing: rank 0); start it with --remote-servers, or raise "
                          "--timeout / MUSTER_TIMEOUT");
}

// Claims the lowest free number among the separately started servers and returns it.
inline int take_number(any_store& store, const announcement& job, clock::time_point until) {
  for (int number = 0; number < job.servers; ++number) {
    if (store.compare_and_swap(key_of_server(number), 0, "here", until, passing).swapped) return number;
  }
  throw configuration_error(
      "the job at " + store.where() + " has all the " + std::to_string(job.servers) +
      " remote servers that it waits for (one more was started); start the job with more --remote-servers");
}

MUSTER_INLINE assembled_launch assemble_launch(const settings& configuration, const launch_env& launcher) {
  const bool is_server = configuration.choice(setting::role, {"auto", "server"}) == 1;
  const int servers = static_cast<int>(configuration.integer(setting::remote_servers));
  if (!is_server && servers == 0) return {launcher, nullptr};
  check(configuration, configuration.origin(is_server ? setting::role : setting::remote_servers));
  const auto until = deadline_after(seconds(configuration.number(setting::timeout)));

  launch_env assembled = launcher;
  assembled.kind = launch_env::launcher::generic;
  assembled.start_name = job_name(configuration, launcher);
  if (is_server) assembled.rank = 1;  // not rank 0: a server does not serve the store
  assembled.size = std::max(2, assembled.size);
  assembled_launch result{assembled, open_store(configuration, assembled)};
  auto& store = *result.store;

  announcement job{launcher.size, servers, assembled.start_name};
  if (is_server) {
    job = await_announcement(store, until);
    result.launch.rank = job.ranks + take_number(store, job, until);
    result.launch.start_name = job.job;
  } else if (launcher.rank == 0) {
    announce(store, job, until);
  }
  auto& launch = result.launch;
  launch.size = job.ranks + job.servers;
  const auto hosts = exchange(store, prefix_of_meeting, launch.rank, launch.size, host_identity(configuration), until);
  const auto& own_host = hosts[static_cast<std::size_t>(launch.rank)];
  launch.local_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), own_host));
  launch.local_rank = static_cast<int>(std::count(hosts.begin(), hosts.begin() + launch.rank, own_host));
  launch.reason = std::to_string(job.ranks) + " of a launcher, " + std::to_string(job.servers) + " launched separately";
  if (launch.rank == 0) {
    (void)store.compare_and_swap(key_of_launch, store.get(key_of_launch, until).version, job_has_begun, until, passing);
  }
  return result;
}

}}}  // namespace muster::v0::detail
