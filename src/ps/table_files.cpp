// Tables in files: saved by all workers together, or by the servers of an elastic job without any.
#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/ps/job.hpp>

#include "../core/checked_file.hpp"
#include "../core/descriptor.hpp"
#include "../core/text.hpp"
#include "../core/wire.hpp"
#include "runtime/worker_process.hpp"
#include "table_files.hpp"

namespace muster { inline namespace v0 { namespace ps {
namespace {

using nlohmann::json;

constexpr const char* manifest_name = "tables.json";
// Of the manifest and of the files that it names; and of those that servers wrote, which have more.
constexpr int tables_format = 2;
constexpr int format_of_servers = 3;

std::string text_of(const std::filesystem::path& path) {
  const auto bytes = muster::detail::read_whole_file(path.string(), [] {});
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Parts one behind the other: table, bytes. This worker's share of the ranges. The servers take a worker that is silent
// for dead, so it is heard between the pieces of a file.
void save_parts(job& of, const group& workers, const std::filesystem::path& path) {
  muster::detail::checked_file file(path.string(), [&] { of.tables().progress(); });
  const auto step = static_cast<range_id>(workers.size());
  for (auto range = static_cast<range_id>(workers.rank()); range < of.layout().ranges(); range += step) {
    if (of.layout().table_of(range).leases) continue;
    const auto values = of.tables().save(range);
    muster::detail::wire_writer head;
    detail::add_part_head(head, of.layout().range(range).table, values.size());
    file.write(head.take());
    file.write(values);
  }
  file.commit();
}

// A worker that the others took for dead while it wrote has been replaced: what it would publish now may be older than
// what its successor has published. It learns of that by an answer, and throws.
void require_place(job& of) {
  for (range_id range = 0; range < of.layout().ranges(); ++range) {
    if (!of.layout().table_of(range).leases) return static_cast<void>(of.tables().save(range));
  }
}

void load_places(job& of, std::span<const std::byte> bytes, const std::function<void()>& refuse) {
  muster::detail::wire_reader in(bytes);
  const auto range = in.number<range_id>();
  std::vector<std::uint64_t> places(in.rest().size() / sizeof(std::uint64_t));
  in.read_all(std::span(places));
  if (!in.good() || !in.rest().empty() || range >= of.layout().ranges()) refuse();
  of.tables().restore_places(range, places);
}

void load_parts(job& of, const std::filesystem::path& path) {
  const auto refuse = [&] {
    throw data_error({path.string()}, "is damaged (its checksum is wrong); go back to an older checkpoint");
  };
  const auto heard = [&] { of.tables().progress(); };
  const auto all = muster::detail::read_whole_file(path.string(), heard);
  if (all.size() < sizeof(std::uint32_t)) refuse();
  const auto parts = std::span(all).first(all.size() - sizeof(std::uint32_t));
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < parts.size(); at += muster::detail::file_piece) {
    sum = crc32c(parts.subspan(at, std::min(muster::detail::file_piece, parts.size() - at)), sum);
    heard();
  }
  if (muster::detail::wire_reader(std::span(all).last(sizeof sum)).number<std::uint32_t>() != sum) refuse();
  for (muster::detail::wire_reader in(parts); !in.rest().empty();) {
    const auto table = in.number<std::uint32_t>();
    const auto bytes = in.bytes(in.number());
    if (in.good() && table == detail::places_part) {
      load_places(of, bytes, refuse);
      continue;
    }
    if (!in.good() || table >= of.layout().tables().size()) refuse();
    of.tables().restore(table, bytes);
  }
}

// The job whose tables a manifest is of; empty where there is none that says it.
std::string job_of(const std::filesystem::path& folder) {
  try {
    return json::parse(text_of(folder / manifest_name)).at("job").get<std::string>();
  } catch (const std::exception&) {
    return {};
  }
}

// Two jobs do not commit at the same time. Without an effect where folders cannot be locked.
muster::detail::descriptor lock_folder(const std::filesystem::path& folder) {
  muster::detail::descriptor held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (held) (void)::flock(held.get(), LOCK_EX);
  return held;
}

json describe(const table_layout& layout) {
  json tables = json::array();
  for (const auto& one : layout.tables()) {
    if (one.leases) continue;
    tables.push_back({{"name", one.name}, {"size", one.size}, {"width", one.width}, {"update", one.update}});
  }
  return tables;
}

// Where they begin.
json ranges_of(const table_layout& layout) {
  json ranges = json::array();
  for (range_id range = 0; range < layout.ranges(); ++range) ranges.push_back(layout.range(range).begin);
  return ranges;
}

// The files that it named before go, but for those that it names again.
void write_manifest(const std::filesystem::path& folder, json head, const detail::saved_folders& folders) {
  const auto manifest = folder / manifest_name;
  const auto held = lock_folder(folder);
  folders.require_own(folder);
  if (!folders.job().empty()) head["job"] = folders.job();
  std::vector<std::string> former;
  if (std::filesystem::exists(manifest)) {
    try {
      former = json::parse(text_of(manifest)).at("files").get<std::vector<std::string>>();
    } catch (const json::exception&) {  // a damaged one is replaced, too
    }
    const auto named = head["files"].get<std::vector<std::string>>();
    std::erase_if(former, [&](const std::string& name) {
      const bool is_made =
          muster::detail::is_made_name(name, "tables-#-#") || muster::detail::is_made_name(name, "tables-#-#-#");
      return !is_made || std::ranges::count(named, name) > 0;
    });
  }
  write_atomically(manifest.string(), head.dump(1) + "\n");
  std::error_code ignored;
  for (const auto& name : former) std::filesystem::remove(folder / name, ignored);
}

// What one worker cannot do none has done: all throw, those that could with another's failure as the reason.
void together(group& workers, const std::filesystem::path& folder, const std::function<void()>& part) {
  std::exception_ptr own;
  try {
    part();
  } catch (...) {
    own = std::current_exception();
  }
  std::int64_t failures[] = {own ? 1 : 0};
  allreduce(workers, std::span(failures), sum);
  if (own) std::rethrow_exception(own);
  if (failures[0] > 0)
    throw data_error({folder.string()}, "was not saved or loaded (another worker failed); see its error");
}

// `by`: the worker that names the files of all, or the server. Two of them may be at it, if the one takes the other for
// dead.
std::string name_of(std::uint64_t at, std::uint64_t by, int rank = 0) {
  return "tables-" + std::to_string(at) + "-" + std::to_string(by) + (rank == 0 ? "" : "-" + std::to_string(rank));
}

// As it lies in memory: it has no padding.
std::vector<std::uint8_t> encode(state_position where) {
  where.evaluations = where.runs = 0;  // of this start of the program
  std::vector<std::uint8_t> bytes(sizeof where);
  std::memcpy(bytes.data(), &where, sizeof where);
  return bytes;
}

// What this worker wrote for a save that failed, unless a manifest names it all the same.
void remove_unnamed(const std::filesystem::path& file) {
  try {
    const auto files = json::parse(text_of(file.parent_path() / manifest_name)).at("files");
    if (std::ranges::count(files, json(file.filename().string())) > 0) return;
  } catch (const std::exception&) {
  }
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
}

}  // namespace

void detail::saved_folders::look(const std::filesystem::path& folder) {
  const auto [seen, is_new] = first_.try_emplace(folder.lexically_normal().string());
  if (is_new) seen->second = job_of(folder);
}

void detail::saved_folders::require_own(const std::filesystem::path& folder) const {
  const std::string there = job_of(folder);
  const auto seen = first_.find(folder.lexically_normal().string());
  if (job_.empty() || there.empty() || there == job_ || seen == first_.end() || there == seen->second) return;
  throw configuration_error("the tables in '" + folder.string() +
                            "' are of another job (it has saved them since this one began, and they would mix); give "
                            "each job a folder of its own");
}

std::uint64_t detail::saved_folders::number(std::uint64_t by) const {
  return job_.empty() ? by : digest().add(job_).add(by).value();
}

void detail::add_part_head(muster::detail::wire_writer& to, std::uint32_t table, std::size_t bytes) {
  to.add(table, std::uint64_t{bytes});
}

void detail::add_part(muster::detail::wire_writer& to, std::uint32_t table, std::span<const std::byte> bytes) {
  add_part_head(to, table, bytes.size());
  to.add_bytes(bytes);
}

void detail::save_by_servers::add(const table_layout& layout, std::uint32_t self, server_part mine,
                                  clock::time_point until) {
  if (mine.has_order && !mine.plan) problem_ = "no worker had begun the order";
  const auto attempt = [&](const auto& part) {
    try {
      if (problem_.empty()) part();
    } catch (const std::exception& failed) {
      problem_ = failed.what();
    }
  };
  attempt([&] {
    if (!file_.empty()) return;  // as what it wrote is not trained on, it is the same
    std::filesystem::create_directories(folder_);
    std::uint64_t number = 0;  // a name that no file of the save before has
    const auto by = folders_.number(self);
    while (std::filesystem::exists(folder_ / name_of(number, by))) ++number;
    const auto file = folder_ / name_of(number, by);
    muster::detail::checked_file written(file.string(), [] {});
    written.write(mine.values.take());
    written.commit();
    file_ = file;
  });
  for (auto now = store_->get(key_, until);;) {
    json all = now ? json::parse(now.value) : json{{"files", json::array()}, {"ranges", json::array()}};
    const json name = file_.filename().string();
    if (all.contains("outcome") || std::count(all["files"].begin(), all["files"].end(), name) > 0) return;
    for (const auto range : mine.ranges) all["ranges"].push_back(range);
    all["files"].push_back(name);
    if (mine.plan) {
      const auto left = std::as_bytes(std::span(mine.left));
      all["position"] = encode({.steps = mine.plan->steps, .at = mine.plan->from});
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
        all["format"] = format_of_servers;
        all["tables"] = describe(layout);
        all["ranges"] = ranges_of(layout);
        write_manifest(folder_, all, folders_);
      });
    if (is_last || !problem_.empty()) all["outcome"] = problem_;
    auto tried = store_->compare_and_swap(key_, now.version, all.dump(), until);
    if (tried.swapped) return;
    now = std::move(tried.now);
  }
}

std::optional<std::string> detail::save_by_servers::outcome(clock::time_point until) {
  const auto now = store_->get(key_, until);
  const auto all = json::parse(now.value, nullptr, false);
  if (!all.is_object() || !all.contains("outcome")) return std::nullopt;
  auto told = all["outcome"].get<std::string>();
  std::error_code ignored;
  if (!told.empty() && !file_.empty()) std::filesystem::remove(file_, ignored);
  return told;
}

void save_tables(job& of, group& workers, const std::string& into, const state_position& where) {
  const std::filesystem::path folder = into;
  auto& tables = of.tables();
  auto& folders = detail::worker_process::folders_of(tables);
  folders.look(folder);
  tables.flush();
  // All pushes count, and no worker makes others. No server is read that is out of the chain by which they count.
  std::uint64_t newest[] = {detail::worker_process::core_of(tables).newest_map()};
  allreduce(workers, std::span(newest), muster::max);
  detail::worker_process::hear_of_map(tables, newest[0]);
  const std::uint64_t clock = tables.clock_now();
  // As no file of the save before is, and none of another job.
  std::uint64_t named[] = {clock, folders.number(static_cast<std::uint64_t>(of.worker()))};
  if (workers.rank() == 0) {
    while (std::filesystem::exists(folder / name_of(named[0], named[1]))) ++named[0];
  }
  broadcast(workers, std::span(named), 0);
  const auto own = folder / name_of(named[0], named[1], workers.rank());
  together(workers, folder, [&] {
    std::filesystem::create_directories(folder);
    save_parts(of, workers, own);
  });
  const auto publish = [&] {
    require_place(of);
    if (workers.rank() != 0) return;
    std::vector<std::string> files;
    files.reserve(static_cast<std::size_t>(workers.size()));
    for (int rank = 0; rank < workers.size(); ++rank) files.push_back(name_of(named[0], named[1], rank));
    const json head{{"format", tables_format},
                    {"clock", clock},
                    {"position", encode(where)},
                    {"tables", describe(of.layout())},
                    {"files", files}};
    write_manifest(folder, head, folders);
  };
  try {
    together(workers, folder, publish);
  } catch (...) {
    remove_unnamed(own);
    throw;
  }
}

std::optional<saved_tables> load_tables(job& of, group& workers, const std::string& from) {
  const std::filesystem::path folder = from;
  std::optional<saved_tables> found;
  detail::worker_process::folders_of(of.tables()).look(folder);
  together(workers, folder, [&] {
    const auto manifest = folder / manifest_name;
    if (!std::filesystem::exists(manifest)) return;
    try {
      const auto read = json::parse(text_of(manifest));
      if (read.at("format") != tables_format && read.at("format") != format_of_servers) {
        throw data_error({manifest.string()}, "has another format (" + read.at("format").dump() +
                                                  "; this muster reads " + std::to_string(tables_format) + " and " +
                                                  std::to_string(format_of_servers) +
                                                  "); use the muster that wrote it");
      }
      if (read.at("tables") != describe(of.layout())) {
        throw data_error({manifest.string()}, "is of other tables (" + read.at("tables").dump() + ", not " +
                                                  describe(of.layout()).dump() +
                                                  "); give the job those that were saved");
      }
      // Where the workers died in the middle of batches, some ranges have a part of a batch that others have not.
      if (read.at("format") == format_of_servers && read.at("ranges") != ranges_of(of.layout())) {
        throw data_error({manifest.string()}, "was written by servers without workers, of " +
                                                  std::to_string(read.at("ranges").size()) +
                                                  " ranges, and this job has " + std::to_string(of.layout().ranges()) +
                                                  "; start it with as many servers and hot spares as before");
      }
      const auto files = read.at("files").get<std::vector<std::string>>();
      for (auto i = static_cast<std::size_t>(workers.rank()); i < files.size();
           i += static_cast<std::size_t>(workers.size()))
        load_parts(of, folder / std::filesystem::path(files[i]).filename());
      found = saved_tables{.clock = read.value("clock", std::uint64_t{0})};
      const auto at = read.value("position", std::vector<std::uint8_t>());
      if (at.size() != sizeof found->at)
        throw data_error({manifest.string()}, "has no position (it is damaged); go back to an older checkpoint");
      std::memcpy(&found->at, at.data(), sizeof found->at);
      const auto left = read.value("left", std::vector<std::uint8_t>());
      found->left.resize(left.size() / sizeof(lease));
      if (!found->left.empty())
        std::memcpy(static_cast<void*>(found->left.data()), left.data(), found->left.size() * sizeof(lease));
    } catch (const json::exception&) {
      throw data_error({manifest.string()}, "is no manifest of tables (it is damaged); go back to an older checkpoint");
    }
  });
  barrier(workers);  // no worker pulls before all is there
  return found;
}

}}}  // namespace muster::v0::ps
