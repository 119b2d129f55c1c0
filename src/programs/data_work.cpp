#include "data_work.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/progress.hpp>
#include <muster/core/spec.hpp>
#include <muster/core/text.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/classes.hpp>
#include <muster/data/open.hpp>
#include <muster/data/parallel.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/shards.hpp>
#include <muster/data/sources/parquet.hpp>

#include "source_description.hpp"
#include "visible.hpp"

namespace {

using muster::detail::hex;

using muster::data::detail::record_run;

// Returns the number of records in a run of about two mebibytes, so that the cost of passing a run to a thread is
// small.
std::uint64_t records_of_run(const muster::data::any_record_source& source) {
  constexpr std::uint64_t looked_at = 64;
  constexpr std::uint64_t run_bytes = std::uint64_t{2} << 20;
  constexpr std::uint64_t most = 1 << 16;
  std::vector<muster::sample_id> ids(std::min(looked_at, source.size()));
  std::iota(ids.begin(), ids.end(), muster::sample_id{0});
  std::vector<std::uint64_t> sizes(ids.size());
  source.sizes(ids, sizes);
  const std::uint64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  return std::clamp<std::uint64_t>(run_bytes * ids.size() / std::max<std::uint64_t>(sum, 1), 1, most);
}

// A run of records. A task reads the run, or the consuming thread does if no task has begun.
struct run_ahead {
  explicit run_ahead(record_run initial_run) : run(std::move(initial_run)) {}

  record_run run;
  std::exception_ptr failure;
  std::atomic<bool> begun{false}, done{false};

  void read(const muster::data::any_record_source& source, muster::sample_id first, std::uint64_t count,
            bool as_features) {
    if (begun.exchange(true)) return;
    try {
      run.read(source, first, count, true, as_features);
    } catch (...) {
      failure = std::current_exception();
    }
    done = true;
    done.notify_all();
  }
};

// Reads the records of a source from `first` on, several runs ahead on `threads` threads (0: all), and passes the runs
// to `use` in order, each with its first record. `as_features` as in record_run.
void for_each_run(const muster::data::any_record_source& source, const char* verb, int threads, muster::sample_id first,
                  bool as_features, const std::function<void(muster::sample_id, const record_run&)>& use) {
  const std::uint64_t each = records_of_run(source);
  const std::size_t most = muster::data::detail::thread_count(threads, source.size() / each + 1);
  const auto start = muster::clock::now();
  muster::progress_line progress;
  std::uint64_t bytes = 0;
  std::deque<std::shared_ptr<run_ahead>> ahead;
  record_run spare;  // Memory for the next run.
  muster::data::detail::background_tasks tasks(most);
  muster::sample_id next = first;
  for (muster::sample_id at = first; at < source.size();) {
    const auto count_at = [&](muster::sample_id begin) { return std::min(each, source.size() - begin); };
    for (; next < source.size() && ahead.size() < 2 * most; next += count_at(next)) {
      ahead.push_back(std::make_shared<run_ahead>(std::exchange(spare, {})));
      tasks.start([&source, as_features, run = ahead.back(), next, count = count_at(next)] {
        run->read(source, next, count, as_features);
      });
    }
    const auto front = std::move(ahead.front());
    ahead.pop_front();
    front->read(source, at, count_at(at), as_features);
    front->done.wait(false);
    if (front->failure) std::rethrow_exception(front->failure);
    const record_run& run = front->run;
    use(at, run);
    at += run.sizes.size();
    bytes += run.bytes.size();
    spare = std::move(front->run);
    if (!progress.is_due()) continue;
    const double seconds = muster::seconds_since(start);
    const double to_go = double(source.size() - at) * seconds / double(at - first);
    progress.update(
        muster::detail::printed("%s %llu of %llu records, %.1f MB/s, %s to go", verb,
                                static_cast<unsigned long long>(at), static_cast<unsigned long long>(source.size()),
                                double(bytes) / 1e6 / seconds, muster::detail::duration_text(to_go).c_str()));
  }
}

// Returns the identity of a copy: a killed copy is resumed only by a copy with the same identity.
std::uint64_t work_of(const copy_request& request, const muster::data::any_record_source& source) {
  return muster::digest()
      .add(source.digest())
      .add(source.host_state().value_or(0))
      .add(source.size())
      .add(to_string(source.schema()))
      .add(request.file_bytes)
      .add(request.files)
      .add(std::uint64_t{request.layout.alignment})
      .add(std::uint64_t{request.layout.block_bytes})
      .add(static_cast<std::uint64_t>(request.layout.level))
      .add(static_cast<std::uint64_t>(request.bad.policy))
      .add(request.by)
      .add(muster::detail::joined(std::span<const std::string>(request.classes), ","))
      .value();
}

// The output, a file or a folder of files, and the first record that is still missing.
struct output {
  std::optional<muster::data::record_file_writer> single_file;
  std::unique_ptr<muster::data::parquet_writer> parquet;
  std::optional<muster::data::record_set_writer> record_set;
  std::uint64_t begin = 0;

  void append(std::span<const std::byte> record, std::span<const float> labels, std::optional<std::uint32_t> shard) {
    if (parquet) return parquet->append(record, labels);
    single_file ? single_file->append(record, labels) : record_set->append(record, labels, shard);
  }
};

// Opens an output that is one file. Returns false if the name is a folder's.
bool open_single_file(const copy_request& request, const muster::data::any_record_source& source,
                      const muster::data::record_schema& schema, output& result) {
  const bool is_parquet = request.to.ends_with(".parquet");
  if (!is_parquet && !request.to.ends_with(".muster")) return false;
  if (request.append || !request.by.empty() || request.files > 1) {
    throw muster::configuration_error("'" + request.to + "' is one file (its name ends with " +
                                      (is_parquet ? ".parquet" : ".muster") + "); name a folder for several");
  }
  if (is_parquet)
    result.parquet = muster::data::create_parquet(request.to, schema, source.columns(), request.layout);
  else
    result.single_file.emplace(request.to, schema, request.layout);
  return true;
}

// `shards` is the number of shards, or 0.
output open_output(const copy_request& request, const muster::data::any_record_source& source, std::uint32_t shards) {
  namespace fs = std::filesystem;
  auto schema = source.schema();
  if (!request.classes.empty()) schema.classes = request.classes;
  output result;
  if (open_single_file(request, source, schema, result)) return result;
  const std::uint64_t work = work_of(request, source);
  std::error_code ignored;
  if (!request.append && fs::exists(fs::path(request.to) / std::string(muster::data::manifest_name), ignored) &&
      !muster::data::record_set_writer::is_unfinished(request.to, work)) {
    throw muster::configuration_error("'" + request.to +
                                      "' has records already (nothing is overwritten); choose another folder, or add "
                                      "to it with --append");
  }
  result.record_set.emplace(request.to, schema, request.layout,
                            request.files != 0 ? ~std::uint64_t{0} : request.file_bytes);
  // Shards are written concurrently, so that an interrupted copy has no complete shard. A query may return different
  // records the next time.
  const bool resumable = request.by.empty() && source.host_state().has_value();
  result.begin = result.record_set->resume(resumable ? std::optional(work) : std::nullopt);
  if (!request.append) result.record_set->require_alone();
  result.record_set->require_division(shards == 0 ? "" : request.by + " " + std::to_string(shards));
  return result;
}

// Opens the source of a copy, with the classes of --classes.
muster::data::any_record_source open_copied(const copy_request& request, const std::string& specification) {
  for (auto name = request.classes.begin(); name != request.classes.end(); ++name) {
    if (std::find(request.classes.begin(), name, *name) == name) continue;
    throw muster::configuration_error("--classes has the class '" + *name +
                                      "' twice (a label would have no single name); name each class once");
  }
  const bool keep = request.bad.policy != muster::bad_record_policy::fail;
  auto source = open_visibly(specification, options_for(keep, request.threads));
  if (request.classes.empty()) return source;
  return source.schema().classes.empty() ? muster::with_classes(source, request.classes.size())
                                         : muster::with_classes(source, request.classes);
}

// Writes the records of a source, in runs, into the files or shards of a copy.
class record_copy {
 public:
  record_copy(const copy_request& request, const muster::data::any_record_source& source)
      : request_(request),
        source_(source),
        rule_(request.by.empty()
                  ? std::nullopt
                  : std::optional<muster::data::shard_rule>(std::in_place, request.by, request.shards, source.schema(),
                                                            source.size(), source.columns())),
        of_shards_(rule_ ? rule_->shards() : 0),
        out_(open_output(request, source, rule_ ? rule_->shards() : 0)) {
    while (file_ + 1 < request.files && end_of(file_) < out_.begin) ++file_;
    end_of_file_ = end_of(file_);
  }

  // Returns the first record that is still missing, and the number of records that an interrupted copy left out.
  [[nodiscard]] std::uint64_t begin() const { return out_.begin; }
  [[nodiscard]] std::uint64_t left_out() const { return out_.record_set ? out_.begin - out_.record_set->resumed() : 0; }
  // Returns the number of records in each shard.
  [[nodiscard]] const std::vector<std::uint64_t>& of_shards() const { return of_shards_; }

  void write(muster::sample_id first, const record_run& run) {
    auto bad = run.bad.begin();
    std::size_t at = 0;
    for (std::size_t k = 0; k < run.sizes.size(); at += run.sizes[k++]) {
      move_to(first + k);
      if (bad != run.bad.end() && bad->id == first + k) {
        ++bad;  // Record is skipped.
        continue;
      }
      append(first + k, std::span(run.bytes).subspan(at, run.sizes[k]),
             std::span(run.labels).subspan(k * labels_each_, labels_each_));
    }
    if (out_.record_set) out_.record_set->reached(first + run.sizes.size());
  }

  // Returns false for a file of another format, of which no digest of records is known.
  [[nodiscard]] bool has_digest() const { return out_.parquet == nullptr; }
  // Completes the copy, and returns its files.
  std::vector<muster::data::manifest_entry> commit() {
    if (out_.parquet) return {{request_.to, appended_, out_.parquet->commit(), 0}};
    if (out_.single_file) {
      const auto written = out_.single_file->commit();
      return {{request_.to, written.records, written.bytes, written.digest}};
    }
    out_.record_set->commit();
    return out_.record_set->committed();
  }

 private:
  [[nodiscard]] std::uint64_t end_of(std::uint64_t file) const {
    if (request_.files == 0) return source_.size();
    return muster::part_of(source_.size(), {static_cast<int>(file), static_cast<int>(request_.files)}).last;
  }
  void move_to(muster::sample_id id) {
    if (out_.record_set) out_.record_set->reached(id);
    while (id == end_of_file_) {  // Repeats if there are more files than records.
      if (out_.record_set) out_.record_set->next_file();
      end_of_file_ = end_of(++file_);
    }
  }
  void append(muster::sample_id id, std::span<const std::byte> record, std::span<const float> labels) {
    std::optional<std::uint32_t> shard;
    if (rule_) ++of_shards_[*(shard = (*rule_)(id, record, labels))];
    out_.append(record, labels, shard);
    ++appended_;
  }

  const copy_request& request_;
  const muster::data::any_record_source& source_;
  std::optional<muster::data::shard_rule> rule_;
  std::vector<std::uint64_t> of_shards_;
  output out_;
  const std::size_t labels_each_ = source_.schema().labels.size();
  std::uint64_t file_ = 0;
  std::uint64_t end_of_file_ = 0;
  std::uint64_t appended_ = 0;  // records of this run
};

}  // namespace

std::string as_specification(const std::string& specification) {
  std::error_code ignored;
  return specification.find(':') == std::string::npos && std::filesystem::exists(specification, ignored)
             ? "records:" + specification
             : specification;
}

json copy_records(const copy_request& request) {
  const auto start = muster::clock::now();
  const std::string specification = as_specification(request.from);
  const auto source = open_copied(request, specification);
  record_copy copy(request, source);
  const std::uint64_t left_out_before = copy.left_out();
  muster::bad_record_options bad_options = request.bad;
  bad_options.limit -= std::min(bad_options.limit, left_out_before);
  muster::bad_record_log log(bad_options);
  for_each_run(source, "written", request.threads, copy.begin(), false,
               [&](muster::sample_id first, const record_run& run) {
                 log.note(source.name(), run.bad);
                 copy.write(first, run);
               });
  if (source.host_state_now() != source.host_state()) {
    throw muster::data_error({std::string(source.name())},
                             "was changed during the copy (the records would be a mix of both versions); start again");
  }
  json report = {{"source", muster::detail::without_secrets(specification)},
                 {"to", request.to},
                 {"schema", to_string(source.schema())}};
  if (!request.classes.empty()) report["classes"] = request.classes;
  const auto files = copy.commit();
  std::uint64_t records = 0, bytes = 0;
  for (const auto& entry : files) {
    records += entry.records;
    bytes += entry.bytes;
  }
  report["records"] = records;
  report["left_out"] = left_out_before + log.count();
  if (copy.begin() != 0) report["resumed_at"] = copy.begin();
  report["files"] = files.size();
  if (!request.by.empty()) report["shards"] = copy.of_shards();
  report["bytes"] = bytes;
  if (copy.has_digest()) report["digest"] = hex(muster::data::record_files(request.to).digest());
  report["seconds"] = muster::seconds_since(start);
  return report;
}

json describe_statistics(const std::string& specification, int threads) {
  const auto start = muster::clock::now();
  const auto source = open_visibly(specification, options_for(true, threads));
  const auto known = source.known_statistics();
  std::atomic<int> parts{0};
  const auto found = done_visibly(
      "reads " + std::to_string(source.size()) + " records",
      [&] { return muster::statistics(source, threads, [&] { ++parts; }); },
      [&] { return double(parts.load()) / muster::data::detail::statistics_parts; });
  const std::string path = path_of_records(specification);
  const bool kept = std::filesystem::is_directory(path);
  if (kept && known != found) muster::keep_statistics(path, found);
  const auto describe = [](const muster::column_statistics& of) {
    return json{{"count", of.count},
                {"mean", of.mean},
                {"deviation", of.deviation()},
                {"least", of.least},
                {"greatest", of.greatest}};
  };
  json report = {{"source", muster::detail::without_secrets(specification)},
                 {"records", found.records},
                 {"left_out", found.left_out},
                 {"kept", kept}};
  report["columns"] = json::array();
  for (const auto& column : found.columns) report["columns"].push_back(describe(column));
  if (found.label.count != 0) report["label"] = json::array({describe(found.label)});
  report["histogram"] = json::object();
  for (const auto& [label, count] : found.histogram) report["histogram"][json(label).dump()] = count;
  report["seconds"] = muster::seconds_since(start);
  return report;
}

json verify_source(const std::string& specification, std::uint64_t most_shown, int threads) {
  const auto start = muster::clock::now();
  const auto source = open_visibly(specification, options_for(true, threads));
  muster::bad_record_log log({.policy = muster::bad_record_policy::skip});
  json shown = json::array();
  std::uint64_t bytes = 0;
  for_each_run(source, "checked", threads, 0, true, [&](muster::sample_id /*first*/, const record_run& run) {
    log.note(source.name(), run.bad);
    bytes += run.bytes.size();
    for (const auto& bad : run.bad) {
      if (shown.size() < most_shown) shown.push_back(describe_bad(bad));
    }
  });
  json report = {{"source", muster::detail::without_secrets(specification)},
                 {"records", source.size()},
                 {"bytes", bytes},
                 {"digest", hex(source.digest())},
                 {"bad", log.count()},
                 {"seconds", muster::seconds_since(start)}};
  report["bad_by_file"] = log.count_by_file();
  report["bad_records"] = shown;
  return report;
}
