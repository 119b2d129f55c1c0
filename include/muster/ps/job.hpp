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

/// The last server that held some range has died: the job ends at every rank, for a restart from the tables that it
/// saved last (`load_tables`). A launcher recognises it by its exit status.
class tables_lost : public peer_failure {
 public:
  static constexpr int status = 16;  ///< the exit status
  /// Names the table and the range.
  tables_lost(const table_layout& layout, range_id range);
};

/// Options of a job; the same at every rank.
struct job_options {
  std::vector<table_spec> tables;
  int servers = 1;         ///< the last ranks of the group, before the hot spares
  int standby = 0;         ///< hot spares, the last ranks: serve when a server has died, or by `client::serve_by`
  bool colocated = false;  ///< every rank is a worker, and a server on a thread of the job; the two above are ignored
  /// Further copies of every range, on different servers: so many servers may die at once. When the last server that
  /// held a range has died, the job ends with `tables_lost`.
  std::uint32_t replicas = 1;
  consistency how{};
  /// Codec of pushes. For a dense table the worker adds what a biased codec left out to the next push of the same
  /// elements (`encode_with_feedback`). Sparse tables have no residuals, and take unbiased codecs only.
  compression compress{};
  seconds timeout{30};  ///< of every blocking call
  seconds retry{0.2};   ///< after which unanswered messages are sent again
  /// After which a rank that sends nothing is suspected. Empty: 1 s; a server whose connections stand, as long as
  /// heartbeats may be missed, or half of `timeout` where all ranks are on one host.
  std::optional<seconds> silence{};
  std::size_t window = 8_MiB;  ///< bytes of outstanding pushes of a worker, and of outstanding pulls
};

/// The options for these tables by `--servers`, `--standby`, `--replicas`, `--consistency`, `--compress` and
/// `--timeout` or their variables. Throws configuration_error for more `--remote-servers` than servers and hot spares.
[[nodiscard]] job_options chosen_options(const settings& chosen, std::vector<table_spec> tables);

/// One rank's part in such a job: a server or a worker, or both if co-located. The ranks communicate in their own
/// group, which survives the death of any of them over shm and tcp. Used by one thread.
class job {
 public:
  /// Collective over the group. The shard map is kept in `store`, which has to outlive the servers that may die; the
  /// same at every rank. Throws configuration_error where the transport has no receives from any source, where no rank
  /// is left to be a worker, for a codec that the tables cannot use, and for co-located servers over mpi;
  /// mismatch_error where ranks have different options.
  job(group& ranks, const job_options& options, std::shared_ptr<any_store> store);
  /// The same with the store of the context's settings and launcher (`open_store`), in memory for ranks that are
  /// threads. In an elastic context the processes are not `ranks` but the members of the job, which may leave and join
  /// at any time; one job a process. Throws mismatch_error in one that joins with other options, and
  /// elastic::departure when its part is over, as later calls do.
  job(context& of, group& ranks, const job_options& options);
  job(job&&) noexcept;
  job& operator=(job&&) = delete;
  /// Sends the others a message when this rank leaves before the end; they continue without it.
  ~job();

  /// Whether this rank is a server and no worker.
  [[nodiscard]] bool is_server() const noexcept;
  [[nodiscard]] int workers() const noexcept;
  /// Rank among the workers; in an elastic job a number of its own.
  [[nodiscard]] int worker() const noexcept;
  [[nodiscard]] const table_layout& layout() const noexcept;

  /// Of a server: serves until the last worker has finished. Throws peer_failure when the other ranks have fenced this
  /// one, and tables_lost when the last server of some range has died. In an elastic job whose workers have all died
  /// the servers save the tables into `folder`, which all of them reach, before they throw elastic::departure; without
  /// a folder the tables are lost. `load_tables` takes them on as many servers as saved them.
  void serve(const std::string& folder = {});
  /// Of a worker: for its pushes and pulls. Valid as long as the job.
  [[nodiscard]] client& tables();
  /// Collective over the workers: a group of the workers with its own connections. Unlike groups split from the job's
  /// it survives the death of a server, so that `save_tables` works after one. Throws configuration_error over mpi.
  [[nodiscard]] group connect_workers();
  /// The last call of a worker: commits all its pushes; afterwards no rank waits for it. In a process that also is a
  /// server, or serves the store (rank 0 of most launches), it returns when all workers have finished or are fenced.
  void finish();

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

/// Collective over the workers: writes all tables of their job, with the state of update functions, into a folder that
/// all workers reach, after all earlier pushes are committed; and with them the position of the first worker's state
/// (`state::position`), so that tables and data resume at one moment. Each worker writes its share of the ranges to its
/// own file, and then a manifest names the files, so that an interrupted save leaves the previous one valid; its files
/// are removed after a complete one. Barriers before and after keep workers from pushing meanwhile. Throws
/// configuration_error, at every worker, when files cannot be written.
///
/// The death of a server ends groups that were split from the job's, but not those of `job::connect_workers`.
void save_tables(job& of, group& workers, const std::string& folder, const state_position& at = {});

/// The progress of the first worker when tables were saved.
struct saved_tables {
  std::uint64_t clock = 0;
  state_position at{};  ///< for `state::move_to` before the first step
  /// Batches before `at` that are to be trained, for `client::begin_order`: of tables that servers saved without
  /// workers.
  std::vector<lease> left{};
};

/// Collective over the workers: restores the tables from the last save in that folder, on any number of servers;
/// nothing when there is no save. Throws data_error, at every worker, for damaged files and files of other tables.
std::optional<saved_tables> load_tables(job& of, group& workers, const std::string& folder);

}}}  // namespace muster::v0::ps
