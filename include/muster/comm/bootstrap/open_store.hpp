// Opens the store of a job, by the settings and the launcher's environment.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/bootstrap/store.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/env.hpp>

namespace muster { inline namespace v0 {

/// Opens the store through which the ranks of this job find each other, by `--rendezvous` or MUSTER_RENDEZVOUS:
///
///   file:/folder       over TCP, at a free port, which is in a file of that folder, named by user and job (`--job`).
///                      Rank 0 serves and writes the file; in an elastic job it starts muster-store, which outlives it,
///                      unless the store of the file still runs. Needs muster::tcp
///   tcp://host:port    over TCP. Rank 0 serves there if the host is its own and no process serves yet; the others, and
///                      rank 0 if not, connect, and try again until the deadline while none does. In an elastic job the
///                      store is to outlive rank 0: muster-store serves it, which rank 0 starts under mpirun and srun,
///                      and the user otherwise. Jobs with different `--job` do not meet there. Needs muster::tcp
///   etcd://host:port   an etcd, or several of a cluster with commas between them, by muster::etcd; etcds:// over TLS.
///                      The job needs a name: its launcher's, or `--job`
///   auto               the first of these that is available: PMIx (mpirun of Open MPI, srun --mpi=pmix), by which
///                      rank 0 sends the others its address and a secret for this start; MASTER_ADDR and MASTER_PORT,
///                      as tcp://; and where all ranks are on one host, as file:/ in the folder of temporary files. For
///                      elastic jobs of one host the last comes first: there ranks wait for rank 0 only. A process
///                      that is the only rank keeps its store in memory
///
/// All ranks open it, within `--timeout`. Throws configuration_error when that is not possible, with what to set
/// instead, and timeout_error when no process serves it in time. An onlooker opens that of etcd:// alone. Rank 0 closes
/// it last where it serves it: an `exchange` makes sure of that.
[[nodiscard]] std::unique_ptr<any_store> open_store(const settings& configuration, const launch_env& launch,
                                                    store_role role = store_role::member);

/// The secret by which the processes of this job authenticate: `--token` or MUSTER_TOKEN where it is not auto; else
/// random bytes in the store, drawn by the first process that asks. Every process that can read the store can read it.
[[nodiscard]] std::string common_token(any_store& store, const settings& configuration, clock::time_point until);

namespace detail {

/// The name by which processes of one host or one store tell this job from others: `--job`, else what the launcher
/// says. Throws configuration_error for ranks that were started by hand and share neither that nor a tcp:// address.
[[nodiscard]] std::string job_name(const settings& configuration, const launch_env& launch);

/// This user and that job, as part of the name of a file or key.
[[nodiscard]] std::string store_name(std::string_view job);

/// The part of a store that is of one job; other jobs have parts of their own.
[[nodiscard]] std::unique_ptr<any_store> of_job(std::unique_ptr<any_store> store, std::string_view job);

/// Whether this process has opened the store of a job, at which it meets others.
[[nodiscard]] bool store_was_opened() noexcept;

/// What a store is opened for.
struct store_opening {
  const settings& configuration;
  const launch_env& launch;
  std::string origin;  ///< what asks for it, for errors
  clock::time_point until;
  store_role role = store_role::member;

  [[nodiscard]] bool is_elastic() const { return configuration.value(setting::elastic) == "on"; }
  [[nodiscard]] std::string name() const { return store_name(job_name(configuration, launch)); }
};

/// Opens a store of one kind, at the place that stands behind the kind: "host:port", a folder. Nothing, and why, where
/// there is none of the kind.
using store_opener = std::unique_ptr<any_store> (*)(const std::string& place, const store_opening& asked,
                                                    std::string& why_not);
/// What muster::tcp ("tcp", "file", "pmix") and muster::etcd ("etcd", "etcds") add to `open_store`. Returns true, so
/// that it can start an inline variable.
bool register_store(const std::string& kind, store_opener opener);

#ifdef MUSTER_HAS_TCP
// Linking muster::tcp is what makes these known: this reference pulls them out of the archive.
bool link_tcp_store() noexcept;
[[maybe_unused]] static const bool tcp_store_is_linked = link_tcp_store();
#endif
#ifdef MUSTER_HAS_ETCD
bool link_etcd_store() noexcept;
[[maybe_unused]] static const bool etcd_store_is_linked = link_etcd_store();
#endif

}  // namespace detail
}}  // namespace muster::v0
