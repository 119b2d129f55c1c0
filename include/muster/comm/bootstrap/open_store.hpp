// Opens the store of a job, by the settings and the launcher's environment.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/bootstrap/store.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/core/env.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {

/// Opens the store through which the job's ranks find each other, by `--rendezvous` or MUSTER_RENDEZVOUS:
///
///   file:/folder       over TCP, at a free port. A file in that folder, named by user and job (`--job`), has the port.
///                      Rank 0 serves and writes the file. In an elastic job rank 0 starts muster-store, which outlives
///                      rank 0, unless the file's store still runs. Needs muster::tcp
///   tcp://host:port    over TCP. Rank 0 serves if the host is its own and no process serves yet. All other ranks, and
///                      a rank 0 that does not serve, connect, and try again until the deadline while no process
///                      serves. In an elastic job the store must outlive rank 0: muster-store serves it. Rank 0 starts
///                      muster-store under mpirun and srun, and the user starts it otherwise. Jobs with different
///                      `--job` do not meet in the store. Needs muster::tcp
///   etcd://host:port   an etcd, or several members of a cluster separated by commas, by muster::etcd. etcds:// is over
///                      TLS. The job needs a name: its launcher's, or `--job`
///   auto               the first available: PMIx (mpirun of Open MPI, srun --mpi=pmix), through which rank 0 sends the
///                      others its address and a secret for this start; MASTER_ADDR and MASTER_PORT, as tcp://; and if
///                      all ranks are on one host, file:/ in the folder of temporary files. For elastic jobs on one
///                      host the last has priority: its ranks wait for rank 0 only. A process that is the only rank
///                      keeps its store in memory, except an elastic rank that a launcher started: other ranks may join
///
/// All ranks open the store. The call waits at most for `--timeout`. Throws configuration_error when that is not
/// possible, naming the setting to change, and timeout_error when no process serves the store in time. An onlooker can
/// open an etcd:// store only. If rank 0 serves the store, rank 0 closes it last: an `exchange` ensures this order.
[[nodiscard]] std::unique_ptr<any_store> open_store(const settings& configuration, const launch_env& launch,
                                                    store_role role = store_role::member);

/// Returns the secret by which the job's processes authenticate: `--token` or MUSTER_TOKEN if it is not auto; otherwise
/// random bytes in the store, drawn by the first process that calls this. Every process that can read the store can
/// read the secret.
[[nodiscard]] std::string common_token(any_store& store, const settings& configuration, clock::time_point until);

namespace detail {

/// Returns the name by which the processes of a host or a store distinguish this job from others: `--job`, else the
/// launcher's name for this start (`launch_env::start_name`), else this process's number if it has no launcher, else
/// the tcp:// address of the store. Throws configuration_error if none of these exists.
[[nodiscard]] std::string job_name(const settings& configuration, const launch_env& launch);

/// Returns a name for this user and that job, as part of the name of a file or key. Names with other characters than
/// letters, digits, '-', '.' and '_', and names of more than 200 characters, end with a digest of the job's name, so
/// that no two jobs get one name.
[[nodiscard]] std::string store_name(std::string_view job);

/// Returns a view of a store whose keys all begin with the job's name: jobs that share a server have separate keys.
/// Its longest key is shorter than `store_key_limit` by the length of that name. Owns `store`.
[[nodiscard]] std::unique_ptr<any_store> of_job(std::unique_ptr<any_store> store, std::string_view job);

/// Returns true once this process has called `open_store`, even if that failed.
[[nodiscard]] bool store_was_opened() noexcept;

/// The arguments of opening a store.
struct store_opening {
  const settings& configuration;
  const launch_env& launch;
  std::string origin;  ///< name of the setting that requests the store, for errors
  clock::time_point until;
  store_role role = store_role::member;

  [[nodiscard]] bool is_elastic() const { return configuration.value(setting::elastic) == "on"; }
  [[nodiscard]] std::string name() const { return store_name(job_name(configuration, launch)); }
};

/// Opens a store of a kind, at the place that follows the kind: "host:port", a folder. Returns nothing, and the reason
/// in `why_not`, if there is no store of the kind.
using store_opener = std::unique_ptr<any_store> (*)(const std::string& place, const store_opening& asked,
                                                    std::string& why_not);
/// Makes `open_store` open stores of a kind by this function: "tcp", "file" and "pmix" (muster::tcp), "etcd" and
/// "etcds" (muster::etcd).
void register_store(const std::string& scheme, store_opener opener);

}  // namespace detail
}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
