// A job with a parameter server: which ranks serve and which work, and what they have in common.
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

namespace muster::inline v0::ps {

/// The last server that held some range has died: the job ends, at every rank, to be started again from the tables that
/// it saved last (`load_tables`). Its exit status tells a launcher so.
class tables_lost : public peer_failure {
 public:
  static constexpr int status = 16;  ///< the exit status
  /// Names the table and the range.
  tables_lost(const table_layout& layout, range_id range);
};

/// The same at every rank.
struct job_options {
  std::vector<table_spec> tables;
  int servers = 1;         ///< ranks that serve, the last of the group but for those that stand by
  int standby = 0;         ///< behind them: ranks that serve when one has died, or `client::serve_by` wants more
  bool colocated = false;  ///< every rank works and serves, on a thread of the job's; the two above say nothing then
  /// Copies of every range beyond the first, where there are servers for them: as many may die at once. When the last
  /// that held a range has died the job ends with `tables_lost`.
  std::uint32_t replicas = 1;
  consistency how{};
  /// Of pushes: what a biased method leaves out of one to a dense table, its worker adds to the next for the same
  /// elements (core/codec/error_feedback.hpp). Rows of sparse tables come and go, so these take unbiased methods alone.
  compression compress{};
  seconds timeout{30};         ///< of every blocking call
  seconds retry{0.2};          ///< after which unanswered messages are sent again
  seconds silence{1.0};        ///< after which a silent rank is suspect
  std::size_t window = 8_MiB;  ///< of pushes that a worker may have under way, and of pulls
};

/// These tables, served as `--servers`, `--standby`, `--replicas`, `--consistency`, `--compress` and `--timeout` or
/// their variables say. Throws configuration_error for more `--remote-servers` than there are to be servers.
[[nodiscard]] job_options chosen_options(const settings& chosen, std::vector<table_spec> tables);

/// One rank's part in such a job: a server or a worker, or both if these are co-located. The ranks talk in a group of
/// their own, which survives the death of any of them where its transport does (shm, tcp). Used by one thread.
class job {
 public:
  /// Collective over the group. The shard map is kept in `store`, which has to outlive the servers that may die; the
  /// same at every rank. Throws configuration_error where the transport has no receives from any source, where no rank
  /// is left to work, where ranks were given different options, for methods of compression that do not go with the
  /// tables, and for co-located servers over mpi.
  job(group& ranks, const job_options& options, std::shared_ptr<any_store> store);
  /// The same with the store that the context's settings and launcher lead to (`open_store`): in memory for ranks that
  /// are threads.
  job(context& of, group& ranks, const job_options& options);
  job(job&&) noexcept;
  job& operator=(job&&) = delete;
  /// Tells the others when this rank leaves before its end: they go on without it.
  ~job();

  /// Whether this rank serves and does nothing else.
  [[nodiscard]] bool is_server() const noexcept;
  [[nodiscard]] int workers() const noexcept;
  /// Rank among the workers.
  [[nodiscard]] int worker() const noexcept;
  [[nodiscard]] const table_layout& layout() const noexcept;

  /// A server's: serves until the last worker has left. Throws peer_failure when the others went on without this one,
  /// and tables_lost when the last server of some range has died.
  void serve();
  /// A worker's: what it pushes and pulls by.
  [[nodiscard]] client& tables();
  /// Collective over the workers: a group of them with connections of its own, which the death of a server does not end
  /// as it ends those that were split from the job's: by it `save_tables` goes on after one. Throws configuration_error
  /// over mpi.
  [[nodiscard]] group connect_workers();
  /// A worker's last call: all pushes count, and no rank waits for it any more. With a
  /// server in its process it returns when that is done too: when all workers have finished, or are gone. So it does
  /// where this process serves the store, which the others need when a server dies (rank 0 of most launches).
  void finish();

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

/// Collective over the workers: writes all tables of their job into a folder that all of them reach, as they are when
/// every push that was made before counts; values and what update functions remember; and with them how far the first
/// worker's state is (`state::position`), so that tables and data go on from one moment. Each worker writes its share
/// of the ranges to a file of its own, and then a manifest names them: a save that is cut short leaves the one before.
/// The files of that are removed. No worker pushes meanwhile, for they all meet before and after. Throws
/// configuration_error, at every worker, when files cannot be written.
///
/// The death of a server ends the groups that were split from the job's; those of `job::connect_workers` go on.
void save_tables(job& of, group& workers, const std::string& folder, const state_position& at = {});

/// What the first worker had when tables were saved.
struct saved_tables {
  std::uint64_t clock = 0;
  state_position at{};  ///< for `state::move_to` before the first step
};

/// Collective over the workers: the tables become those of the last save in that folder, on as many servers as there
/// are now; nothing when nothing was saved. Throws data_error, at every worker, for files that are damaged or of other
/// tables.
std::optional<saved_tables> load_tables(job& of, group& workers, const std::string& folder);

}  // namespace muster::inline v0::ps
