#include <muster/serve/repository.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <compare>
#include <exception>
#include <filesystem>
#include <future>
#include <optional>
#include <system_error>
#include <utility>

#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include <muster/core/file_state.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include <muster/core/scheduling.hpp>
#include "model_statistics.hpp"

namespace muster { inline namespace v0 { namespace serve {

/// The identity of a version. A new folder with the same number is a new version.
struct repository::identity {
  std::uint64_t version = 0;
  std::uint64_t inode = 0;
  std::int64_t changed = 0;  // change time in nanoseconds
  std::uint64_t files = 0;   // digest of the files' names and states
  friend auto operator<=>(const identity&, const identity&) = default;
  /// Returns true if both are the same folder, whose files may differ. An inode may be reused, and then has another
  /// time.
  [[nodiscard]] bool is_folder_of(const identity& other) const noexcept {
    return version == other.version && inode == other.inode && changed == other.changed;
  }
};

struct repository::entry {
  std::shared_ptr<model_statistics> statistics = std::make_shared<model_statistics>();
  std::optional<identity> served;
  std::optional<identity> last_scanned;  // the served folder, if its files were overwritten, at the last scan
  std::set<identity> damaged;
};

namespace {

bool is_model_name(std::string_view name) {
  constexpr std::string_view allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.starts_with('.') && name.find_first_not_of(allowed) == std::string_view::npos;
}

/// Returns a digest that differs after each change of a file below the folder. Waits until a later change has another
/// time.
std::uint64_t state_of_files(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code failed;
  for (std::filesystem::recursive_directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed))
    paths.push_back(at->path().string());
  std::ranges::sort(paths);
  digest all;
  timespec newest{};
  for (const auto& path : paths) {
    struct stat found {};
    if (::stat(path.c_str(), &found) != 0) continue;
    all.add(path.substr(folder.size())).add(detail::state_of(found));
    const auto is_before = [](const timespec& a, const timespec& b) {
      return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
    };
    if (is_before(newest, found.st_ctim)) newest = found.st_ctim;
  }
  detail::wait_for_next_tick(newest);
  return all.value();
}

/// Returns the names in a folder, or no names if the path is not a folder.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed))
    names.push_back(at->path().filename().string());
  return names;
}

// Predicts one row of zeros and then a full batch, so that the model allocates its memory and its code is loaded before
// the first request.
void predict_zeros(any_predictor& model, std::size_t max_batch) {
  const std::vector<std::byte> zeros(model.info().input.row_bytes());
  for (const std::size_t size : {std::size_t{1}, max_batch}) {
    const std::vector<std::span<const std::byte>> rows(size, zeros);
    buffer<std::byte> output(size * model.info().output.row_bytes());
    prediction_batch batch(rows, output.span());
    model.predict(batch);
  }
}

// Warms up a model in a thread of low priority, because the served models need the processors meanwhile. Loading has
// normal priority, because threads that the model starts during loading inherit the priority.
void warm_up(any_predictor& model, std::size_t max_batch) {
  std::async(std::launch::async, [&] {
    detail::lower_priority_of_this_thread();
    predict_zeros(model, max_batch);
  }).get();
}

}  // namespace

repository::repository(std::string folder, load_function load, const batch_options& options, seconds period)
    : folder_(std::move(folder)), load_(std::move(load)), options_(options), period_(period) {
  if (!std::filesystem::is_directory(folder_)) {
    throw configuration_error("there are no models in " + folder_ +
                              " (it is not a folder); name a folder that has MODEL/VERSION/");
  }
  thread_ = std::thread([this] { run(); });
}

repository::~repository() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void repository::run() {
  {
    const std::lock_guard scan_lock(scanning_);
    if (!has_scanned_) scan_models();  // unless a caller's scan() was the first
  }
  for (;;) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_until(lock, deadline_after(period_), [&] { return stopping_; })) return;
    lock.unlock();
    scan();
  }
}

void repository::scan() {
  const std::lock_guard scan_lock(scanning_);
  scan_models();
}

void repository::scan_models() {
  auto names = names_in(folder_);
  std::error_code ignored;
  std::erase_if(names, [&](const std::string& name) {
    if (name.starts_with('.')) return true;
    if (!is_model_name(name))
      ignore_entry(folder_ + "/" + name, "a model's name has only letters, digits, '.', '_' and '-'; rename it");
    else if (std::filesystem::is_regular_file(folder_ + "/" + name, ignored))
      ignore_entry(folder_ + "/" + name, "it is not a folder; put it into a folder such as MODEL/1/");
    else
      return false;
    return true;
  });
  for (const auto& each : entries_) {  // also models that were removed
    if (std::ranges::find(names, each.first) == names.end()) names.push_back(each.first);
  }
  for (const auto& name : names) scan_model(name);
  destroy_retired();
  const std::lock_guard lock(mutex_);
  has_scanned_ = true;
}

void repository::ignore_entry(const std::string& path, const std::string& reason) {
  if (ignored_entries_.insert(path).second) log(log_level::warning, path + " is left out (" + reason + ")");
}

void repository::scan_model(const std::string& name) {
  const std::string folder = folder_ + "/" + name;
  std::set<identity> versions;
  for (const auto& each : names_in(folder)) {
    struct stat status {};
    const auto number = parse_number<std::uint64_t>(each);
    const std::string path = folder + "/" + each;
    const bool is_folder = ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
    if (!number || !is_folder) {
      const bool is_incomplete = each.starts_with('.') || (is_folder && each.find('.') != std::string::npos);
      if (!is_incomplete)
        ignore_entry(
            path,
            "a version is a folder whose name is a whole number without leading zeros; rename it, for example to 1");
      continue;
    }
    versions.insert({*number, status.st_ino,
                     status.st_ctim.tv_sec * std::int64_t{1'000'000'000} + status.st_ctim.tv_nsec,
                     state_of_files(path)});
  }
  if (versions.empty() && !entries_.contains(name)) return;
  auto& model_entry = entries_[name];
  if (!model_entry) model_entry = std::make_unique<entry>();
  std::erase_if(model_entry->damaged, [&](const identity& each) { return !versions.contains(each); });
  for (auto each = versions.rbegin(); each != versions.rend(); ++each) {
    if (model_entry->served == *each) return;
    // The served version is in memory. The repository serves it until new files with the same number are complete.
    const bool is_in_its_place = model_entry->served && model_entry->served->version == each->version;
    const bool is_written_over = model_entry->served && model_entry->served->is_folder_of(*each);
    if (is_written_over && std::exchange(model_entry->last_scanned, *each) != *each) return;
    if (is_in_its_place && model_entry->damaged.contains(*each)) return;
    if (model_entry->damaged.contains(*each)) continue;
    const std::string version = folder + "/" + std::to_string(each->version);
    const auto has_changed = [&] { return state_of_files(version) != each->files; };
    try {
      any_predictor model = load_(version);
      if (has_changed()) {  // the model may contain old and new files
        if (is_in_its_place) return;
        continue;
      }
      warm_up(model, options_.max_batch);
      replace(
          name,
          std::shared_ptr<served_model>(new served_model{
              name, each->version, model_entry->statistics, {std::move(model), options_, model_entry->statistics}}));
      model_entry->served = *each;
      log(log_level::info, "serving " + version);
      return;
    } catch (...) {
      model_entry->damaged.insert(*each);
      log(log_level::error, version + " is not served" + (is_in_its_place ? " with its current files (" : " (") +
                                describe(std::current_exception()) + "); add a complete version under a higher number");
      const std::lock_guard lock(mutex_);
      ++failed_loads_;
      if (is_in_its_place) return;
    }
  }
  model_entry->served.reset();
  replace(name, nullptr);
}

void repository::replace(const std::string& name, std::shared_ptr<served_model> next) {
  const std::lock_guard lock(mutex_);
  auto& place = served_[name];
  std::swap(place, next);
  if (!place) served_.erase(name);
  if (next) retired_.push_back(std::move(next));
}

// Destroys replaced versions that no request uses. A scan does this rather than the last request, because that request
// may hold the version on the batcher's own thread, and the destructor of the batcher waits for that thread.
void repository::destroy_retired() {
  std::erase_if(retired_, [](const auto& each) { return each.use_count() == 1; });
}

std::shared_ptr<served_model> repository::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = served_.find(name);
  return found == served_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<served_model>> repository::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<served_model>> models;
  for (const auto& each : served_) models.push_back(each.second);
  return models;
}

bool repository::is_ready() const {
  const std::lock_guard lock(mutex_);
  return has_scanned_ && !served_.empty();
}

std::uint64_t repository::failed_loads() const {
  const std::lock_guard lock(mutex_);
  return failed_loads_;
}

}}}  // namespace muster::v0::serve
