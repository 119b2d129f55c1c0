// Tables in files: saved by all workers together, restored on any number of servers.
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/ps/job.hpp>

#include "../core/wire.hpp"

namespace muster::inline v0::ps {
namespace {

using nlohmann::json;

constexpr const char* manifest_name = "tables.json";
constexpr int tables_format = 2;  // of the manifest and of the files that it names

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw data_error({path.string()}, "cannot be read (the checkpoint names it); restore the file");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Parts one behind the other: table, bytes, and a checksum over all in the end. This worker's share of the ranges.
std::string save_parts(job& of, const group& workers) {
  muster::detail::wire_writer to;
  const auto step = static_cast<range_id>(workers.size());
  for (auto range = static_cast<range_id>(workers.rank()); range < of.layout().ranges(); range += step) {
    if (of.layout().table_of(range).leases) continue;
    const auto bytes = of.tables().save(range);
    to.add(of.layout().range(range).table);
    to.add(std::uint64_t{bytes.size()});
    to.add_bytes(bytes);
  }
  std::string text = to.take();
  const std::uint32_t sum = crc32c(std::as_bytes(std::span(text)));
  text.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  return text;
}

void load_parts(job& of, const std::filesystem::path& path) {
  const auto refuse = [&] {
    throw data_error({path.string()}, "is damaged (its checksum is wrong); go back to an older checkpoint");
  };
  const auto all = read_all(path);
  if (all.size() < sizeof(std::uint32_t)) refuse();
  const auto text = std::string_view(all).substr(0, all.size() - sizeof(std::uint32_t));
  muster::detail::wire_reader sum(std::string_view(all).substr(text.size()));
  if (crc32c(std::as_bytes(std::span(text))) != sum.number<std::uint32_t>()) refuse();
  for (muster::detail::wire_reader in(text); !in.rest().empty();) {
    const auto table = in.number<std::uint32_t>();
    const auto bytes = in.bytes(in.number());
    if (!in.good() || table >= of.layout().tables().size()) refuse();
    of.tables().restore(table, bytes);
  }
}

json describe(const table_layout& layout) {
  json tables = json::array();
  for (const auto& one : layout.tables()) {
    if (one.leases) continue;
    tables.push_back({{"name", one.name}, {"size", one.size}, {"width", one.width}, {"update", one.update}});
  }
  return tables;
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

// As it lies in memory: it has no padding.
std::vector<std::uint8_t> encode(state_position where) {
  where.evaluations = where.runs = 0;  // of this start of the program
  std::vector<std::uint8_t> bytes(sizeof where);
  std::memcpy(bytes.data(), &where, sizeof where);
  return bytes;
}

}  // namespace

void save_tables(job& of, group& workers, const std::string& into, const state_position& where) {
  const std::filesystem::path folder = into;
  auto& tables = of.tables();
  tables.flush();
  barrier(workers);  // all pushes count, and no worker makes others
  const std::uint64_t clock = tables.clock_now();
  const auto name_of = [](std::uint64_t at, int rank) {
    return "tables-" + std::to_string(at) + "-" + std::to_string(rank);
  };
  std::uint64_t number[] = {clock};  // a name that no file of the save before has
  if (workers.rank() == 0) {
    while (std::filesystem::exists(folder / name_of(number[0], 0))) ++number[0];
  }
  broadcast(workers, std::span(number), 0);
  together(workers, folder, [&] {
    std::filesystem::create_directories(folder);
    write_atomically((folder / name_of(number[0], workers.rank())).string(), save_parts(of, workers));
  });
  together(workers, folder, [&] {
    if (workers.rank() != 0) return;
    const auto manifest = folder / manifest_name;
    std::vector<std::string> former;
    if (std::filesystem::exists(manifest)) {
      const auto read = json::parse(read_all(manifest), nullptr, false);
      if (read.is_object()) former = read.value("files", former);
    }
    std::vector<std::string> files;
    files.reserve(static_cast<std::size_t>(workers.size()));
    for (int rank = 0; rank < workers.size(); ++rank) files.push_back(name_of(number[0], rank));
    const json head{{"format", tables_format},
                    {"clock", clock},
                    {"position", encode(where)},
                    {"tables", describe(of.layout())},
                    {"files", files}};
    write_atomically(manifest.string(), head.dump(1) + "\n");
    std::error_code ignored;
    for (const auto& name : former) std::filesystem::remove(folder / std::filesystem::path(name).filename(), ignored);
  });
}

std::optional<saved_tables> load_tables(job& of, group& workers, const std::string& from) {
  const std::filesystem::path folder = from;
  std::optional<saved_tables> found;
  together(workers, folder, [&] {
    const auto manifest = folder / manifest_name;
    if (!std::filesystem::exists(manifest)) return;
    const auto read = json::parse(read_all(manifest), nullptr, false);
    if (!read.is_object() || !read.contains("format") || !read.contains("files"))
      throw data_error({manifest.string()}, "is no manifest of tables (it is damaged); go back to an older checkpoint");
    if (read["format"] != tables_format) {
      throw data_error({manifest.string()}, "has another format (" + read["format"].dump() + "; this muster reads " +
                                                std::to_string(tables_format) + "); use the muster that wrote it");
    }
    if (read["tables"] != describe(of.layout())) {
      throw data_error({manifest.string()}, "is of other tables (" + read["tables"].dump() + ", not " +
                                                describe(of.layout()).dump() + "); give the job those that were saved");
    }
    const auto files = read["files"].get<std::vector<std::string>>();
    for (auto i = static_cast<std::size_t>(workers.rank()); i < files.size();
         i += static_cast<std::size_t>(workers.size()))
      load_parts(of, folder / std::filesystem::path(files[i]).filename());
    found = saved_tables{.clock = read.value("clock", std::uint64_t{0})};
    const auto at = read.value("position", std::vector<std::uint8_t>());
    if (at.size() != sizeof found->at)
      throw data_error({manifest.string()}, "has no position (it is damaged); go back to an older checkpoint");
    std::memcpy(&found->at, at.data(), sizeof found->at);
  });
  barrier(workers);  // no worker pulls before all is there
  return found;
}

}  // namespace muster::inline v0::ps
