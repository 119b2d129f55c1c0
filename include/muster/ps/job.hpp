// A job with a parameter server: its servers and workers, and their common options.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <muster/comm/bootstrap/store.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/group.hpp>
#include <muster/core/bytes.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/codec/compression.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/elastic/state.hpp>
#include <muster/ps/client.hpp>
#include <muster/ps/consistency.hpp>
#include <muster/ps/table.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// The error of a job in which the last server that held some range has died. The job ends at every rank, to be
/// restarted from the last saved tables (`load_tables`). A launcher recognises the error by its exit status.
class tables_lost : public peer_failure {
 public:
  static constexpr int status = 16;  ///< the exit status
  /// Names the table and the range.
  tables_lost(const table_layout& layout, range_id range);
};

/// Options of a job, equal at every rank. Ranks compare them when the job begins.
struct job_options {
  std::vector<table_spec> tables;
  int servers = 1;  ///< number of servers: the last ranks of the group before the hot spares
  /// Number of hot spares, the last ranks: a spare serves after a server's death or a call of
  /// `client::request_servers`.
  int standby = 0;
  bool colocated = false;  ///< every rank is a worker and runs a server thread; `servers` and `standby` are ignored
  /// Number of further copies of every range, on different servers. The job survives as many simultaneous server
  /// deaths. After the death of the last server that held a range, the job ends with `tables_lost`.
  std::uint32_t replicas = 1;
  consistency consistency_model{};
  /// Codec of pushes. For a dense table the worker adds the error of a biased codec to the next push of the same
  /// elements (`encode_with_feedback`). Sparse tables have no residuals, and accept unbiased codecs only.
  compression compress{};
  seconds timeout{30};  ///< limit of every blocking call
  seconds retry{0.2};   ///< interval after which unanswered messages are sent again
  /// Interval without messages after which a server is suspected. If empty: half of `timeout` if all ranks are on one
  /// host, else the time that heartbeats may be missed (at least 1 s). In an elastic job always at least half of
  /// `timeout`. A worker is suspected after `timeout`.
  std::optional<seconds> server_silence{};
  std::size_t window = 8_MiB;  ///< limit of a worker's outstanding bytes, for pushes and for pulls separately
  std::vector<compared_property> properties{};  ///< further properties that are the same at all ranks, such as a seed
};

/// Returns the options for these tables by `--servers`, `--standby`, `--replicas`, `--consistency`, `--compress` and
/// `--timeout` or their variables. Throws configuration_error if `--remote-servers` exceeds the number of servers and
/// hot spares.
[[nodiscard]] job_options chosen_options(const settings& configuration, std::vector<table_spec> tables);

/// A rank's part in a job with a parameter server: a server, a worker, or both if co-located. The ranks communicate in
/// their own group, which survives the death of any rank over shm and tcp. Used by one thread.
class job {
 public:
  /// Collective over the group. The shard map is kept in `store`, the same at every rank, which must outlive servers
  /// that may die. Throws configuration_error if the transport cannot receive from any source, if no rank remains as a
  /// worker, for a codec that the tables cannot use, and for co-located servers over mpi. Throws mismatch_error if
  /// ranks have different options.
  job(group& ranks, const job_options& options, std::shared_ptr<any_store> store);
  /// Same, with the store of the context's settings and launcher (`open_store`), or a store in memory if the ranks are
  /// threads. In an elastic context the job's members take part instead of `ranks`. They may leave and join at any
  /// time, and a process can have one job. Throws mismatch_error at all processes if options differ when the job
  /// begins, later in the process that joins with other options, and elastic::departure when the process's part in the
  /// job is over. Later calls throw elastic::departure likewise.
  job(context& ctx, group& ranks, const job_options& options);
  job(job&&) noexcept;
  job& operator=(job&&) = delete;
  /// Notifies the other ranks if this rank leaves before the end. The other ranks continue without it.
  ~job();

  /// Returns true if this rank is a server and no worker.
  [[nodiscard]] bool is_server() const noexcept;
  /// Returns the number of workers. In an elastic job: of the present workers, and 0 at a server.
  [[nodiscard]] int workers() const noexcept;
  /// Returns this worker's number, from 0: the rank among the workers. In an elastic job the number is unique to the
  /// process. Call at a worker.
  [[nodiscard]] int worker() const noexcept;
  [[nodiscard]] const table_layout& layout() const noexcept;

  /// Serves until the last worker has finished. Call at a server. Throws peer_failure if the other ranks have fenced
  /// this server, and tables_lost if the last server of some range has died. If all workers of an elastic job have
  /// died, the servers save the tables into `folder`, which all servers must be able to access, and throw
  /// elastic::departure. Without a folder the tables are lost. `load_tables` reads such files if the job has as many
  /// servers and hot spares as before.
  void serve(const std::string& folder = {});
  /// Returns the interface to the tables, at a worker. Valid while the job exists.
  [[nodiscard]] client& tables();
  /// Collective over the workers. Returns a group of the workers with its own connections. Unlike groups split from the
  /// job's group, the result survives the death of a server, so that `save_tables` still works. Throws
  /// configuration_error over mpi.
  [[nodiscard]] group connect_workers();
  /// Commits the worker's pushes. The last call of a worker: afterwards no rank waits for the worker. In a process that
  /// also is a server, or serves the store (rank 0 of most launches), `finish` returns when all workers have finished
  /// or are fenced.
  void finish();

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

/// Collective over the workers. Writes all tables of the workers' job, with the state of update functions, into a
/// folder that all workers can access, after all earlier pushes are committed. Also writes the position of the first
/// worker's state (`state::position`), so that tables and data resume from the same step. Each worker writes its share
/// of the ranges to its own file. Then a manifest names the files, so that an interrupted save leaves the previous save
/// valid. After a complete save the files of the previous save are removed. Barriers before and after prevent pushes
/// during the save. If a worker cannot write its file, throws configuration_error at that worker and data_error at the
/// other workers.
///
/// The death of a server ends groups that were split from the job's group, but not groups from `job::connect_workers`.
void save_tables(job& parameters, group& workers, const std::string& folder, const state_position& position = {});

/// The progress of the first worker at the time of the save.
struct saved_tables {
  std::uint64_t clock = 0;
  state_position position{};  ///< for `state::move_to` before the first step
  /// Batches before `position` that still have to be trained, for `client::begin_order`. Only in tables that servers
  /// saved after all workers had died.
  std::vector<lease> left{};
};

/// Collective over the workers. Restores the tables from the last save in that folder, on any number of servers
/// (a save by servers alone: on as many servers and hot spares as before).
/// Returns nullopt if there is no save. Throws data_error, at every worker, for damaged files and for files of other
/// tables.
std::optional<saved_tables> load_tables(job& parameters, group& workers, const std::string& folder);

}}}  // namespace muster::v0::ps

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/ps/detail/definitions.hpp>
#endif
