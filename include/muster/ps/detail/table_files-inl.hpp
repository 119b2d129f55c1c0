// Tables in files: saved by all workers together, or by the servers of an elastic job without workers.
#pragma once

#include <muster/ps/table_files.hpp>

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/checked_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/core/wire.hpp>
#include <muster/ps/job.hpp>
#include <muster/ps/runtime/worker_process.hpp>

namespace muster { inline namespace v0 { namespace ps {
namespace detail {

using nlohmann::json;

inline constexpr const char* manifest_name = "tables.json";
// Format of the manifest and of the files that it names, if saved by workers; and if saved by servers, with more
// entries.
inline constexpr int tables_format = 2;
inline constexpr int format_of_servers = 3;

inline std::string text_of(const std::filesystem::path& path) {
  const auto bytes = muster::detail::read_whole_file(path.string(), [] {});
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Writes this worker's share of the ranges to its own file, as consecutive parts: table, bytes. Servers fence a silent
// worker, so the worker makes progress between the pieces of a file.
inline void save_own_ranges(job& parameters, const group& workers, const std::filesystem::path& path) {
  muster::detail::checked_file file(path.string(), [&] { parameters.tables().progress(); });
  const auto step = static_cast<range_id>(workers.size());
  for (auto range = static_cast<range_id>(workers.rank()); range < parameters.layout().ranges(); range += step) {
    if (parameters.layout().table_of(range).leases) continue;
    const auto values = parameters.tables().save(range);
    muster::detail::wire_writer head;
    detail::add_part_head(head, parameters.layout().range(range).table, values.size());
    file.write(head.take());
    file.write(values);
  }
  file.commit();
}

// Throws if this worker is fenced. Other workers may have replaced it while it wrote, and its files may then be older
// than the replacement's files. The answer to a pull shows whether this worker is fenced.
inline void require_place(job& parameters) {
  for (range_id range = 0; range < parameters.layout().ranges(); ++range) {
    if (!parameters.layout().table_of(range).leases) return static_cast<void>(parameters.tables().save(range));
  }
}

inline void load_places(job& parameters, std::span<const std::byte> bytes, const std::function<void()>& refuse) {
  muster::detail::wire_reader reader(bytes);
  const auto range = reader.number<range_id>();
  std::vector<std::uint64_t> places(reader.rest().size() / sizeof(std::uint64_t));
  reader.read_all(std::span(places));
  if (!reader.good() || !reader.rest().empty() || range >= parameters.layout().ranges()) refuse();
  parameters.tables().restore_places(range, places);
}

inline void load_parts(job& parameters, const std::filesystem::path& path) {
  const auto refuse = [&] {
    throw data_error({path.string()}, "is damaged (its checksum is wrong); go back to an older checkpoint");
  };
  const auto on_piece = [&] { parameters.tables().progress(); };
  const auto all = muster::detail::read_whole_file(path.string(), on_piece);
  if (all.size() < sizeof(std::uint32_t)) refuse();
  const auto parts = std::span(all).first(all.size() - sizeof(std::uint32_t));
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < parts.size(); at += muster::detail::file_piece) {
    sum = crc32c(parts.subspan(at, std::min(muster::detail::file_piece, parts.size() - at)), sum);
    on_piece();
  }
  if (muster::detail::wire_reader(std::span(all).last(sizeof sum)).number<std::uint32_t>() != sum) refuse();
  for (muster::detail::wire_reader reader(parts); !reader.rest().empty();) {
    const auto table = reader.number<std::uint32_t>();
    const auto bytes = reader.bytes(reader.number());
    if (reader.good() && table == detail::places_part) {
      load_places(parameters, bytes, refuse);
      continue;
    }
    if (!reader.good() || table >= parameters.layout().tables().size()) refuse();
    parameters.tables().restore(table, bytes);
  }
}

// Returns the job that saved the tables in the folder; empty if no manifest names a job.
inline std::string job_of(const std::filesystem::path& folder) {
  try {
    return json::parse(text_of(folder / manifest_name)).at("job").get<std::string>();
  } catch (const std::exception&) {
    return {};
  }
}

// Locks the folder, so that two jobs do not write their manifests at the same time. Has no effect on file systems
// without locks for folders.
inline muster::detail::descriptor lock_folder(const std::filesystem::path& folder) {
  muster::detail::descriptor lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock) (void)::flock(lock.get(), LOCK_EX);
  return lock;
}

inline json describe(const table_layout& layout) {
  json described = json::array();
  for (const auto& table : layout.tables()) {
    if (table.leases) continue;
    described.push_back({{"name", table.name}, {"size", table.size}, {"width", table.width}, {"update", table.update}});
  }
  return described;
}

// The first elements of the ranges.
inline json ranges_of(const table_layout& layout) {
  json ranges = json::array();
  for (range_id range = 0; range < layout.ranges(); ++range) ranges.push_back(layout.range(range).begin);
  return ranges;
}

// Writes the manifest, and removes the files that the previous manifest named, except files that the new one names.
inline void write_manifest(const std::filesystem::path& folder, json head, const detail::saved_folders& folders) {
  const auto manifest = folder / manifest_name;
  const auto lock = lock_folder(folder);
  folders.require_own(folder);
  if (!folders.job().empty()) head["job"] = folders.job();
  std::vector<std::string> former;
  if (std::filesystem::exists(manifest)) {
    try {
      former = json::parse(text_of(manifest)).at("files").get<std::vector<std::string>>();
    } catch (const json::exception&) {  // a damaged manifest is replaced
    }
    const auto named = head["files"].get<std::vector<std::string>>();
    std::erase_if(former, [&](const std::string& name) {
      const bool is_made = muster::detail::matches_name_pattern(name, "tables-#-#") ||
                           muster::detail::matches_name_pattern(name, "tables-#-#-#");
      return !is_made || std::ranges::count(named, name) > 0;
    });
  }
  write_atomically(manifest.string(), head.dump(1) + "\n");
  std::error_code ignored;
  for (const auto& name : former) std::filesystem::remove(folder / name, ignored);
}

// Runs `action` at all workers. If `action` fails at one worker, all workers throw; the others report the first worker
// that failed, with an error of the same kind.
inline void run_at_all(group& workers, const std::filesystem::path& folder, const std::function<void()>& action) {
  std::exception_ptr own;
  try {
    action();
  } catch (...) {
    own = std::current_exception();
  }
  const std::int32_t status = own ? exit_status_of(own) : 0;
  std::vector<std::int32_t> statuses(static_cast<std::size_t>(workers.size()));
  allgather(workers, std::span(&status, 1), statuses);
  if (own) std::rethrow_exception(own);
  const auto failed = std::ranges::find_if(statuses, [](std::int32_t each) { return each != 0; });
  if (failed == statuses.end()) return;
  const auto kind = static_cast<error_kind>(*failed);
  const std::string problem =
      "was not saved or loaded (worker " + std::to_string(failed - statuses.begin()) + " failed); see its error";
  if (kind == error_kind::data) throw data_error({folder.string()}, problem);
  const std::string text = "the folder of tables '" + folder.string() + "' " + problem;
  if (kind == error_kind::configuration) throw configuration_error(text);
  throw error(kind, text);
}

// Returns the name of a file of the save number `at`. `saver` is the file number (`saved_folders::file_number`) of the
// worker that names all workers' files, or of the server. Two savers may be active at once if one has fenced the other.
inline std::string name_of(std::uint64_t at, std::uint64_t saver, int rank = 0) {
  return "tables-" + std::to_string(at) + "-" + std::to_string(saver) + (rank == 0 ? "" : "-" + std::to_string(rank));
}

// Returns the layout in memory, which has no padding.
inline std::vector<std::uint8_t> encode(state_position position) {
  position.evaluations = position.runs = 0;  // valid only in this run of the program
  std::vector<std::uint8_t> bytes(sizeof position);
  std::memcpy(bytes.data(), &position, sizeof position);
  return bytes;
}

// Removes the file that this worker wrote for a failed save, unless a manifest names the file nevertheless.
inline void remove_unnamed(const std::filesystem::path& path) {
  try {
    const auto files = json::parse(text_of(path.parent_path() / manifest_name)).at("files");
    if (std::ranges::count(files, json(path.filename().string())) > 0) return;
  } catch (const std::exception&) {
  }
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

}  // namespace detail

MUSTER_INLINE void detail::saved_folders::note_owner(const std::filesystem::path& folder) {
  const auto [entry, is_new] = first_owners_.try_emplace(folder.lexically_normal().string());
  if (is_new) entry->second = detail::job_of(folder);
}

MUSTER_INLINE void detail::saved_folders::require_own(const std::filesystem::path& folder) const {
  const std::string owner = detail::job_of(folder);
  const auto first = first_owners_.find(folder.lexically_normal().string());
  if (job_.empty() || owner.empty() || owner == job_ || first == first_owners_.end() || owner == first->second) return;
  throw configuration_error("the tables in '" + folder.string() +
                            "' belong to another job (which saved them since this job began, and the files of both "
                            "jobs would mix); give each job its own folder");
}

MUSTER_INLINE std::uint64_t detail::saved_folders::file_number(std::uint64_t saver) const {
  return job_.empty() ? saver : digest().add(job_).add(saver).value();
}

MUSTER_INLINE void detail::add_part_head(muster::detail::wire_writer& writer, std::uint32_t table, std::size_t bytes) {
  writer.add(table, std::uint64_t{bytes});
}

MUSTER_INLINE void detail::add_part(muster::detail::wire_writer& writer, std::uint32_t table,
                                    std::span<const std::byte> bytes) {
  add_part_head(writer, table, bytes.size());
  writer.add_bytes(bytes);
}

MUSTER_INLINE void detail::save_by_servers::add(const table_layout& layout, std::uint32_t self, server_part mine,
                                                clock::time_point until) {
  if (mine.has_order && !mine.plan) problem_ = "no worker had started the order";
  const auto attempt = [&](const auto& action) {
    try {
      if (problem_.empty()) action();
    } catch (const std::exception& failed) {
      problem_ = failed.what();
    }
  };
  attempt([&] {
    if (!file_.empty()) return;  // nothing was trained since the file was written, so it is still valid
    std::filesystem::create_directories(folder_);
    std::uint64_t number = 0;  // a name that no file of the previous save has
    const auto saver = folders_.file_number(self);
    while (std::filesystem::exists(folder_ / detail::name_of(number, saver))) ++number;
    const auto file = folder_ / detail::name_of(number, saver);
    muster::detail::checked_file written(file.string(), [] {});
    written.write(mine.values.take());
    written.commit();
    file_ = file;
  });
  for (auto entry = store_->get(key_, until);;) {
    json all = entry ? json::parse(entry.value) : json{{"files", json::array()}, {"ranges", json::array()}};
    const json name = file_.filename().string();
    if (all.contains("outcome") || std::count(all["files"].begin(), all["files"].end(), name) > 0) return;
    for (const auto range : mine.ranges) all["ranges"].push_back(range);
    all["files"].push_back(name);
    if (mine.plan) {
      const auto left = std::as_bytes(std::span(mine.left));
      all["position"] = detail::encode({.steps = mine.plan->steps, .data = mine.plan->from});
      all["left"] = std::vector<std::uint8_t>(reinterpret_cast<const std::uint8_t*>(left.data()),
                                              reinterpret_cast<const std::uint8_t*>(left.data()) + left.size());
    }
    const bool is_last = all["ranges"].size() == layout.ranges();
    if (is_last)
      attempt([&] {
        for (const auto& file : all["files"]) {
          const auto path = folder_ / file.get<std::string>();
          if (!std::filesystem::exists(path))
            throw data_error({path.string()}, "is not there (another server wrote it); give all servers one folder");
        }
        all["format"] = detail::format_of_servers;
        all["tables"] = detail::describe(layout);
        all["ranges"] = detail::ranges_of(layout);
        detail::write_manifest(folder_, all, folders_);
      });
    if (is_last || !problem_.empty()) all["outcome"] = problem_;
    auto swapped = store_->compare_and_swap(key_, entry.version, all.dump(), until);
    if (swapped.swapped) return;
    entry = std::move(swapped.now);
  }
}

MUSTER_INLINE std::optional<std::string> detail::save_by_servers::outcome(clock::time_point until) {
  const auto entry = store_->get(key_, until);
  const auto all = json::parse(entry.value, nullptr, false);
  if (!all.is_object() || !all.contains("outcome")) return std::nullopt;
  auto outcome_text = all["outcome"].get<std::string>();
  std::error_code ignored;
  if (!outcome_text.empty() && !file_.empty()) std::filesystem::remove(file_, ignored);
  return outcome_text;
}

MUSTER_INLINE void save_tables(job& parameters, group& workers, const std::string& folder_name,
                               const state_position& position) {
  const std::filesystem::path folder = folder_name;
  auto& tables = parameters.tables();
  auto& folders = detail::worker_process::folders_of(tables);
  folders.note_owner(folder);
  tables.flush();
  // All pushes are committed, and no worker pushes now. The newest map version ensures that no server that was removed
  // from a chain answers the pulls.
  std::uint64_t newest[] = {detail::worker_process::core_of(tables).newest_map()};
  allreduce(workers, std::span(newest), muster::max);
  detail::worker_process::note_map_version(tables, newest[0]);
  const std::uint64_t clock = tables.clock_now();
  // Unused by the files of the previous save and by other jobs' files.
  std::uint64_t named[] = {clock, folders.file_number(static_cast<std::uint64_t>(parameters.worker()))};
  if (workers.rank() == 0) {
    while (std::filesystem::exists(folder / detail::name_of(named[0], named[1]))) ++named[0];
  }
  broadcast(workers, std::span(named), 0);
  const auto own = folder / detail::name_of(named[0], named[1], workers.rank());
  detail::run_at_all(workers, folder, [&] {
    std::filesystem::create_directories(folder);
    detail::save_own_ranges(parameters, workers, own);
  });
  const auto publish = [&] {
    detail::require_place(parameters);
    if (workers.rank() != 0) return;
    std::vector<std::string> files;
    files.reserve(static_cast<std::size_t>(workers.size()));
    for (int rank = 0; rank < workers.size(); ++rank) files.push_back(detail::name_of(named[0], named[1], rank));
    const detail::json head{{"format", detail::tables_format},
                            {"clock", clock},
                            {"position", detail::encode(position)},
                            {"tables", detail::describe(parameters.layout())},
                            {"files", files}};
    detail::write_manifest(folder, head, folders);
  };
  try {
    detail::run_at_all(workers, folder, publish);
  } catch (...) {
    detail::remove_unnamed(own);
    throw;
  }
}

MUSTER_INLINE std::optional<saved_tables> load_tables(job& parameters, group& workers, const std::string& folder_name) {
  const std::filesystem::path folder = folder_name;
  std::optional<saved_tables> found;
  detail::worker_process::folders_of(parameters.tables()).note_owner(folder);
  detail::run_at_all(workers, folder, [&] {
    const auto manifest = folder / detail::manifest_name;
    if (!std::filesystem::exists(manifest)) return;
    try {
      const auto read = detail::json::parse(detail::text_of(manifest));
      if (read.at("format") != detail::tables_format && read.at("format") != detail::format_of_servers) {
        throw data_error({manifest.string()}, "has another format (" + read.at("format").dump() +
                                                  "; this muster reads " + std::to_string(detail::tables_format) +
                                                  " and " + std::to_string(detail::format_of_servers) +
                                                  "); use the muster that wrote it");
      }
      if (read.at("tables") != detail::describe(parameters.layout())) {
        throw data_error({manifest.string()}, "is of other tables (" + read.at("tables").dump() + ", not " +
                                                  detail::describe(parameters.layout()).dump() +
                                                  "); give the job the saved tables");
      }
      // If the workers died during a batch, some ranges have applied a part of the batch that other ranges have not.
      if (read.at("format") == detail::format_of_servers &&
          read.at("ranges") != detail::ranges_of(parameters.layout())) {
        throw data_error({manifest.string()},
                         "was written by servers without workers, of " + std::to_string(read.at("ranges").size()) +
                             " ranges, and this job has " + std::to_string(parameters.layout().ranges()) +
                             "; start it with as many servers and hot spares as before");
      }
      const auto files = read.at("files").get<std::vector<std::string>>();
      for (auto i = static_cast<std::size_t>(workers.rank()); i < files.size();
           i += static_cast<std::size_t>(workers.size()))
        detail::load_parts(parameters, folder / std::filesystem::path(files[i]).filename());
      found = saved_tables{.clock = read.value("clock", std::uint64_t{0})};
      const auto at = read.value("position", std::vector<std::uint8_t>());
      if (at.size() != sizeof found->position)
        throw data_error({manifest.string()}, "has no position (it is damaged); go back to an older checkpoint");
      std::memcpy(&found->position, at.data(), sizeof found->position);
      const auto left = read.value("left", std::vector<std::uint8_t>());
      found->left.resize(left.size() / sizeof(lease));
      if (!found->left.empty())
        std::memcpy(static_cast<void*>(found->left.data()), left.data(), found->left.size() * sizeof(lease));
    } catch (const detail::json::exception&) {
      throw data_error({manifest.string()}, "is no manifest of tables (it is damaged); go back to an older checkpoint");
    }
  });
  barrier(workers);  // no worker pulls before all tables are restored
  return found;
}

}}}  // namespace muster::v0::ps
