// Opening the store of a job as the settings and the launcher say.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <muster/comm/rendezvous/launch_env.hpp>
#include <muster/comm/rendezvous/store.hpp>
#include <muster/core/env.hpp>

namespace muster::inline v0 {

/// Opens the store in which the ranks of this job meet, by `--rendezvous` or MUSTER_RENDEZVOUS:
///
///   file:/folder       over TCP, at a free port that a file in that folder tells, named by user and job (`--job`).
///                      Rank 0 serves and writes the file; in an elastic job it starts muster-store, which outlives it,
///                      unless the file has one that lives. Needs muster::tcp
///   tcp://host:port    over TCP. Rank 0 serves there if the host is its own and no process serves yet; the others, and
///                      rank 0 if not, connect, and try again until the deadline while none does. In an elastic job the
///                      store is to outlive rank 0: muster-store serves it, which rank 0 starts under mpirun and srun,
///                      and the user otherwise. Needs muster::tcp
///   etcd://host:port   an etcd, or several of a cluster with commas between them, by muster::etcd; etcds:// over TLS.
///                      The job needs a name: its launcher's, or `--job`
///   auto               the first of these that is there: PMIx (mpirun of Open MPI, srun --mpi=pmix), by which rank 0
///                      tells the others where it serves and a secret for this start; MASTER_ADDR and MASTER_PORT, as
///                      tcp://; and where all ranks are on one host, as file:/ in the folder of temporary files. For
///                      elastic jobs of one host that comes first: no rank waits there for others than rank 0. A
///                      process that is alone keeps its store in memory
///
/// All ranks open it, by the deadline `--timeout` sets. Throws configuration_error when it cannot be, with what to set
/// instead, and timeout_error when nobody serves it in time. Rank 0 closes it last where it serves it: an `exchange`
/// makes sure of that.
[[nodiscard]] any_store open_store(const settings& configuration, const launch_env& launch);

/// The secret by which the processes of this job know each other: `--token` or MUSTER_TOKEN where it is not auto; else
/// random bytes in the store, which the first that asks draws. Whoever can read the store knows it.
[[nodiscard]] std::string common_token(any_store& store, const settings& configuration, clock::time_point until);

namespace detail {

/// The name by which processes of one host or one store tell this job from others: `--job`, else what the launcher
/// says. Throws configuration_error for ranks that were started by hand and share neither that nor a tcp:// address.
[[nodiscard]] std::string job_name(const settings& configuration, const launch_env& launch);

/// What muster::tcp adds to `open_store`.
struct store_opener {
  any_store (*tcp)(std::string_view where, const std::string& origin, const settings& configuration,
                   const launch_env& launch, clock::time_point until);
  /// Nothing, and why, where PMIx is not to be had.
  std::optional<any_store> (*pmix)(const settings& configuration, const launch_env& launch, clock::time_point until,
                                   std::string& why_not);
  /// `file`: by which the ranks find the store.
  any_store (*by_file)(const std::string& file, const settings& configuration, const launch_env& launch,
                       clock::time_point until);
  /// Removes the files of that prefix that stores which were killed have left in a folder.
  void (*sweep)(const std::string& folder, const std::string& prefix);
};
/// Returns true, so that it can start an inline variable.
bool register_store_opener(const store_opener& opener) noexcept;
/// What muster::etcd adds; `scheme` is "http" or "https".
using etcd_opener = any_store (*)(std::string_view endpoints, std::string_view scheme, std::string_view name,
                                  clock::time_point until);
bool register_etcd_opener(etcd_opener opener) noexcept;

#ifdef MUSTER_HAS_TCP
// Linking muster::tcp is what makes these known: this reference pulls them out of the archive.
bool link_tcp_store() noexcept;
inline const bool tcp_store_is_linked = link_tcp_store();
#endif
#ifdef MUSTER_HAS_ETCD
bool link_etcd_store() noexcept;
inline const bool etcd_store_is_linked = link_etcd_store();
#endif

}  // namespace detail
}  // namespace muster::inline v0
