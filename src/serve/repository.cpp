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
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include "../core/scheduling.hpp"
#include "../data/file_state.hpp"
#include "statistics.hpp"

namespace muster { inline namespace v0 { namespace serve {

/// Another folder of the same number is another version.
struct repository::identity {
  std::uint64_t version = 0;
  std::uint64_t inode = 0;
  std::int64_t changed = 0;  // in nanoseconds
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
  std::optional<identity> last;  // the served folder at the last look
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

/// The names in a folder; none if it is none.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed))
    names.push_back(at->path().filename().string());
  return names;
}

// One row, then a full batch, as the threads that serve will call it: memory is there and code is loaded afterwards.
void predict_zeros(any_predictor& model, std::size_t max_batch) {
  const std::vector<std::byte> zeros(model.info().input.row_bytes());
  for (const std::size_t size : {std::size_t{1}, max_batch}) {
    const std::vector<std::span<const std::byte>> rows(size, zeros);
    buffer<std::byte> output(size * model.info().output.row_bytes());
    prediction_batch batch(rows, output.span());
    model.predict(batch);
  }
}

// In a thread of low priority, for what is served meanwhile needs the processors. Loading is not: threads that a model
// starts there would keep that priority.
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
                              " (it is no folder); give one that has MODEL/VERSION/ in it");
  }
  thread_ = std::thread([this] { run(); });
}

repository::~repository() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void repository::run() {
  for (;;) {
    look();
    std::unique_lock lock(mutex_);
    if (changed_.wait_until(lock, deadline_after(period_), [&] { return ending_; })) return;
  }
}

void repository::look() {
  const std::lock_guard looking(looking_);
  auto names = names_in(folder_);
  std::error_code unknown;
  std::erase_if(names, [&](const std::string& name) {
    if (name.starts_with('.')) return true;
    if (!is_model_name(name))
      leave_out(folder_ + "/" + name, "a model's name has letters, digits, '.', '_' and '-' alone; rename it");
    else if (std::filesystem::is_regular_file(folder_ + "/" + name, unknown))
      leave_out(folder_ + "/" + name, "it is no folder; put it into such as MODEL/1/");
    else
      return false;
    return true;
  });
  for (const auto& known : entries_) {  // also those that are gone
    if (std::ranges::find(names, known.first) == names.end()) names.push_back(known.first);
  }
  for (const auto& name : names) look_at(name);
  end_retired();
  const std::lock_guard lock(mutex_);
  has_looked_ = true;
}

void repository::leave_out(const std::string& path, const std::string& why) {
  if (left_out_.insert(path).second) log(log_level::warning, path + " is left out (" + why + ")");
}

void repository::look_at(const std::string& name) {
  const std::string folder = folder_ + "/" + name;
  std::set<identity> there;
  for (const auto& each : names_in(folder)) {
    struct stat found {};
    const auto number = parse_number<std::uint64_t>(each);
    const std::string path = folder + "/" + each;
    const bool is_folder = ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
    if (!number || !is_folder) {
      const bool is_in_the_making = each.starts_with('.') || (is_folder && each.find('.') != std::string::npos);
      if (!is_in_the_making)
        leave_out(path, "a version is a folder, named by a whole number without zeros before it; name it such as 1");
      continue;
    }
    there.insert({*number, found.st_ino, found.st_ctim.tv_sec * std::int64_t{1'000'000'000} + found.st_ctim.tv_nsec,
                  state_of_files(path)});
  }
  if (there.empty() && !entries_.contains(name)) return;
  auto& known = entries_[name];
  if (!known) known = std::make_unique<entry>();
  std::erase_if(known->damaged, [&](const identity& each) { return !there.contains(each); });
  for (auto each = there.rbegin(); each != there.rend(); ++each) {
    if (known->served == *each) return;
    // The served version is in memory. The repository serves it until new files with the same number are complete.
    const bool is_in_its_place = known->served && known->served->version == each->version;
    const bool is_written_over = known->served && known->served->is_folder_of(*each);
    if (is_written_over && std::exchange(known->last, *each) != *each) return;
    if (is_in_its_place && known->damaged.contains(*each)) return;
    if (known->damaged.contains(*each)) continue;
    const std::string version = folder + "/" + std::to_string(each->version);
    const auto has_changed = [&] { return state_of_files(version) != each->files; };
    try {
      any_predictor model = load_(version);
      if (has_changed()) {  // the model may contain old and new files
        if (is_in_its_place) return;
        continue;
      }
      warm_up(model, options_.max_batch);
      replace(name, std::shared_ptr<served_model>(new served_model{
                        name, each->version, known->statistics, {std::move(model), options_, known->statistics}}));
      known->served = *each;
      log(log_level::info, "serving " + version);
      return;
    } catch (...) {
      known->damaged.insert(*each);
      log(log_level::error, version + " is not served" + (is_in_its_place ? " with its current files (" : " (") +
                                describe(std::current_exception()) +
                                "); put a whole version there under a higher number");
      const std::lock_guard lock(mutex_);
      ++failed_loads_;
      if (is_in_its_place) return;
    }
  }
  known->served.reset();
  replace(name, nullptr);
}

void repository::replace(const std::string& name, std::shared_ptr<served_model> next) {
  const std::lock_guard lock(mutex_);
  auto& place = served_[name];
  std::swap(place, next);
  if (!place) served_.erase(name);
  if (next) retired_.push_back(std::move(next));
}

// Here and not where the last request ends: a batcher waits for its thread, which calls what its requests hold.
void repository::end_retired() {
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
  return has_looked_ && !served_.empty();
}

std::uint64_t repository::failed_loads() const {
  const std::lock_guard lock(mutex_);
  return failed_loads_;
}

}}}  // namespace muster::v0::serve
