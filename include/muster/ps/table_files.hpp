// Tables in files: saved by all workers together, restored on any number of servers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <muster/comm/group.hpp>
#include <muster/elastic/state.hpp>
#include <muster/ps/job.hpp>

namespace muster::inline v0::ps {

/// Collective over the workers: writes all tables of their job into a folder that all of them reach, as they are when
/// every push that was made before counts; values and what update functions remember; and with them how far the first
/// worker's state is (`state::position`), so that tables and data go on from one moment. Each worker writes its share
/// of the ranges to a file of its own, and then a manifest names them: a save that is cut short leaves the one before.
/// The files of that are removed. No worker pushes meanwhile, for they all meet before and after. Throws
/// configuration_error, at every worker, when files cannot be written.
///
/// The death of a server ends the groups that were split from the job's; those of `job::connect_workers` go on.
void save_tables(job& of, group& workers, const std::filesystem::path& folder, const state_position& at = {});

/// What the first worker had when tables were saved.
struct saved_tables {
  std::uint64_t clock = 0;
  state_position at{};  ///< for `state::move_to` before the first step
};

/// Collective over the workers: the tables become those of the last save in that folder, on as many servers as there
/// are now; nothing when nothing was saved. Throws data_error, at every worker, for files that are damaged or of other
/// tables.
std::optional<saved_tables> load_tables(job& of, group& workers, const std::filesystem::path& folder);

}  // namespace muster::inline v0::ps
