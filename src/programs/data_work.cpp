#include "data_work.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>
#include <muster/core/progress.hpp>
#include <muster/core/spec.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/open.hpp>
#include <muster/data/records/reader.hpp>

namespace {

std::string hex(std::uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
  return text;
}

json describe_bad(const muster::bad_record& bad) {
  json entry = {{"id", bad.id}, {"file", bad.where.file}};
  if (bad.where.line != 0) entry["line"] = bad.where.line;
  if (bad.where.offset) entry["offset"] = *bad.where.offset;
  entry["problem"] = bad.problem;
  return entry;
}

// Some records in order, as they were read.
struct run_of_records {
  muster::sample_id first;
  std::vector<std::uint64_t> sizes;
  std::vector<std::byte> bytes;
  std::vector<float> labels;
  std::vector<muster::bad_record> bad;
};

// Reads all records of a source from first to last, a few megabytes at a time.
void for_each_run(const muster::any_record_source& source, const char* verb,
                  const std::function<void(const run_of_records&)>& use) {
  constexpr std::uint64_t most_records = 1024;
  constexpr std::uint64_t most_bytes = std::uint64_t{8} << 20;
  const std::size_t labels_each = source.schema().labels.size();
  muster::progress_line progress;
  run_of_records run{};
  std::vector<muster::sample_id> ids;
  for (run.first = 0; run.first < source.size(); run.first += ids.size()) {
    ids.resize(std::min(most_records, source.size() - run.first));
    std::iota(ids.begin(), ids.end(), run.first);
    run.sizes.resize(ids.size());
    source.sizes(ids, run.sizes);
    std::uint64_t total = 0;
    std::size_t count = 0;
    while (count < ids.size() && (count == 0 || total + run.sizes[count] <= most_bytes)) total += run.sizes[count++];
    ids.resize(count);
    run.sizes.resize(count);
    run.bytes.resize(total);
    run.labels.resize(count * labels_each);
    run.bad.clear();
    source.read(ids, {run.bytes, run.labels}, &run.bad);
    use(run);
    if (progress.active()) {
      progress.update(std::string(verb) + " " + std::to_string(run.first + count) + " of " +
                      std::to_string(source.size()) + " records");
    }
  }
}

bool is_one_file(const std::string& path) { return path.ends_with(".muster"); }

// One file, or a folder of them, as asked.
class output {
 public:
  output(const copy_request& request, const muster::record_schema& schema) : path_(request.to) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    if (is_one_file(path_)) {
      if (request.append || request.files > 1) {
        throw muster::configuration_error("'" + path_ +
                                          "' is one file (its name ends with .muster); name a folder for several");
      }
      file_.emplace(path_, schema, request.layout);
      return;
    }
    if (!request.append && fs::exists(fs::path(path_) / std::string(muster::manifest_name), ignored)) {
      throw muster::configuration_error("'" + path_ +
                                        "' has records already (nothing is overwritten); choose another folder, or add "
                                        "to it with --append");
    }
    folder_.emplace(path_, schema, request.layout, request.files != 0 ? ~std::uint64_t{0} : request.file_bytes);
  }
  void append(std::span<const std::byte> record, std::span<const float> labels) {
    file_ ? file_->append(record, labels) : folder_->append(record, labels);
  }
  void next_file() {
    if (folder_) folder_->next_file();
  }
  std::vector<muster::manifest_entry> commit() {
    if (file_) {
      const auto summary = file_->commit();
      return {{path_, summary.records, summary.bytes, summary.digest}};
    }
    folder_->commit();
    return folder_->committed();
  }

 private:
  std::string path_;
  std::optional<muster::record_file_writer> file_;
  std::optional<muster::record_set_writer> folder_;
};

muster::read_options options_for(bool keep_bad_records, int threads) {
  return {.threads = threads, .keep_bad_records = keep_bad_records};
}

}  // namespace

std::string as_specification(const std::string& source) {
  std::error_code ignored;
  return source.find(':') == std::string::npos && std::filesystem::exists(source, ignored) ? "records:" + source
                                                                                           : source;
}

json copy_records(const copy_request& request) {
  const auto start = muster::clock::now();
  const std::string specification = as_specification(request.from);
  const bool keep = request.bad.policy != muster::bad_record_policy::fail;
  const auto source = muster::open_source(specification, options_for(keep, request.threads));
  muster::bad_record_log log(request.bad);
  output out(request, source.schema());
  const std::size_t labels_each = source.schema().labels.size();
  std::uint64_t file = 0;
  std::uint64_t end_of_file =
      request.files != 0 ? muster::part_of(source.size(), {0, static_cast<int>(request.files)}).last : source.size();
  for_each_run(source, "written", [&](const run_of_records& run) {
    log.note(source.name(), run.bad);
    auto bad = run.bad.begin();
    std::size_t at = 0;
    for (std::size_t k = 0; k < run.sizes.size(); at += run.sizes[k++]) {
      if (run.first + k == end_of_file) {
        out.next_file();
        end_of_file = muster::part_of(source.size(), {static_cast<int>(++file), static_cast<int>(request.files)}).last;
      }
      if (bad != run.bad.end() && bad->id == run.first + k) {
        ++bad;  // left out
      } else {
        out.append(std::span(run.bytes).subspan(at, run.sizes[k]),
                   std::span(run.labels).subspan(k * labels_each, labels_each));
      }
    }
  });
  const auto files = out.commit();
  json report = {{"source", specification}, {"to", request.to}, {"schema", to_string(source.schema())}};
  std::uint64_t records = 0, bytes = 0;
  for (const auto& entry : files) {
    records += entry.records;
    bytes += entry.bytes;
  }
  report["records"] = records;
  report["left_out"] = log.count();
  report["files"] = files.size();
  report["bytes"] = bytes;
  report["digest"] = hex(muster::record_files(request.to).digest());
  report["seconds"] = muster::seconds_since(start);
  return report;
}

json describe_source(const std::string& specification, int threads) {
  const auto source = muster::open_source(specification, options_for(true, threads));
  const auto& schema = source.schema();
  json report = {{"source", specification},       {"schema", to_string(schema)},
                 {"records", source.size()},      {"record_bytes", schema.record_bytes()},
                 {"labels", schema.labels},       {"mapped", source.mapped()},
                 {"digest", hex(source.digest())}};
  if (const auto bad = source.known_bad()) report["bad"] = *bad;
  if (!specification.starts_with("records:")) return report;
  const std::string path = muster::spec_reader::of_source(specification).value("path");
  report["files"] = json::array();
  for (const auto& file : muster::record_files(path).files()) {
    report["files"].push_back({{"path", file.path},
                               {"first", file.first},
                               {"records", file.records},
                               {"bytes", file.file_bytes},
                               {"payload_bytes", file.payload_bytes},
                               {"blocks", file.blocks},
                               {"alignment", file.alignment}});
  }
  return report;
}

verification verify_source(const std::string& specification, std::uint64_t most_shown, int threads) {
  const auto start = muster::clock::now();
  const auto source = muster::open_source(specification, options_for(true, threads));
  muster::bad_record_log log({.policy = muster::bad_record_policy::skip});
  verification found;
  std::uint64_t bytes = 0;
  for_each_run(source, "checked", [&](const run_of_records& run) {
    log.note(source.name(), run.bad);
    bytes += run.bytes.size();
    for (const auto& bad : run.bad) {
      if (found.bad.size() < most_shown) found.bad.push_back(bad);
    }
  });
  const double seconds = muster::seconds_since(start);
  found.report = {{"source", specification},        {"records", source.size()}, {"bytes", bytes},
                  {"digest", hex(source.digest())}, {"bad", log.count()},       {"seconds", seconds}};
  found.report["bad_by_file"] = json::object();
  for (const auto& [file, count] : log.count_by_file()) found.report["bad_by_file"][file] = count;
  found.report["bad_records"] = json::array();
  for (const auto& bad : found.bad) found.report["bad_records"].push_back(describe_bad(bad));
  return found;
}
