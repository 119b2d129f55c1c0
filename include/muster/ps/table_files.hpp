// Tables in files: saved by all workers together, restored on any number of servers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <muster/comm/group.hpp>
#include <muster/ps/job.hpp>

namespace muster::inline v0::ps {

/// Collective over the workers: writes all tables of their job into a folder that all of them reach, as they are when
/// every push that was made before counts; values and what update functions remember. Each worker writes its share of
/// the ranges to a file of its own, and then a manifest names them: a save that is cut short leaves the one before. The
/// files of that are removed. Nobody pushes meanwhile, for the workers meet before and after. Throws
/// configuration_error, at every worker, when files cannot be written.
void save_tables(job& of, group& workers, const std::filesystem::path& folder);

/// Collective over the workers: the tables become those of the last save in that folder, on as many servers as there
/// are now; the clock that the first worker had then, or nothing when nothing was saved. Throws data_error, at every
/// worker, for files that are damaged or of other tables.
std::optional<std::uint64_t> load_tables(job& of, group& workers, const std::filesystem::path& folder);

}  // namespace muster::inline v0::ps
