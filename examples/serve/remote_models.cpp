#include "remote_models.hpp"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include <muster/core/spec.hpp>

namespace served {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_versions = 2;
// Limits for the wait for a server that is away, after the start. The end of the program waits as long.
constexpr muster::seconds least_timeout{1}, most_timeout{5};

// Returns the numbers of versions, highest first.
std::vector<std::uint64_t> versions_in(const std::vector<std::string>& names) {
  std::vector<std::uint64_t> versions;
  for (const std::string& name : names) {
    const auto number = muster::parse_number<std::uint64_t>(name);
    if (number && std::to_string(*number) == name) versions.push_back(*number);
  }
  std::ranges::sort(versions, std::greater());
  return versions;
}

// Returns true for a file that load() reads.
bool is_model_file(const std::string& name) { return name.ends_with(".muster") || name.ends_with(".safetensors"); }

}  // namespace

remote_models::remote_models(const std::string& address, muster::seconds period)
    : folder_(muster::temporary_folder() + "/muster-models-XXXXXX"), period_(period) {
  auto spec = muster::spec_reader::of_source(address);
  options_.cache = spec.take("cache").value_or("");
  options_.disk = spec.whole_of("disk", options_.disk);
  options_.timeout = muster::seconds(spec.number_of("timeout", options_.timeout.count(), 0, true));
  address_ = spec.name() + ":" + spec.path();
  spec.finish("https://SERVER/FOLDER");
  if (::mkdtemp(folder_.data()) == nullptr)
    throw muster::configuration_error("the models of " + address_ +
                                      " cannot be copied (no folder can be made for them); set TMPDIR");
  if (options_.cache.empty()) options_.cache = folder_ + "/.cache";  // until the end of an update
  try {
    update();
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    throw;
  }
  has_started_ = true;
  options_.timeout = std::min(options_.timeout, std::clamp(period, least_timeout, most_timeout));
  thread_ = std::thread([this] { run(); });
}

remote_models::~remote_models() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

bool remote_models::is_stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void remote_models::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, period_, [&] { return stopping_; })) {
    lock.unlock();
    try {
      update();
    } catch (const std::exception& failed) {
      report("", failed.what());
    }
    lock.lock();
  }
}

void remote_models::report(const std::string& name, const std::string& problem) {
  std::string& last = problems_[name];
  if (last.empty() && !problem.empty())
    muster::log(muster::log_level::warning,
                (name.empty() ? "the models of " + address_ : "'" + name + "' at " + address_) +
                    " cannot be compared (" + problem + "); copies that are here are served, until it works again");
  last = problem;
}

// Calls the action for a model or a version. If the server refuses one, the others are not affected. A server that is
// away is an error for all.
template <class Action>
void remote_models::attempt(const std::string& name, Action action) {
  if (is_stopping()) return;
  try {
    action();
    report(name, "");
  } catch (const muster::data_error& refused) {
    report(name, refused.what());
  }
}

void remote_models::update() {
  const auto models = open().list();
  if (models.empty()) return report("", "the list is empty");
  for (const std::string& model : models)
    if (model.find('.') == std::string::npos) attempt(model, [&] { update_model(model); });
  const auto is_gone = [&](const std::string& model) { return std::ranges::find(models, model) == models.end(); };
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder_))
    if (is_gone(entry.path().filename().string())) fs::remove_all(entry, ignored);
  std::erase_if(states_, [&](const auto& each) { return is_gone(each.first.substr(0, each.first.find('/'))); });
  report("", "");
}

void remote_models::update_model(const std::string& model) {
  auto versions = versions_in(open().list(model));
  if (versions.size() > most_versions) versions.erase(versions.begin() + most_versions, versions.end());
  for (const auto number : versions) {
    const std::string version = model + "/" + std::to_string(number);
    attempt(version, [&] { update_version(version); });
  }
  const auto is_kept = [&](const std::string& name) {
    return std::ranges::any_of(versions, [&](std::uint64_t number) { return std::to_string(number) == name; });
  };
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(folder_) / model, ignored))
    if (!is_kept(entry.path().filename().string())) fs::remove_all(entry, ignored);
  std::erase_if(states_, [&](const auto& each) {
    return each.first.starts_with(model + "/") && !is_kept(each.first.substr(model.size() + 1));
  });
}

// Copies a version, unless the copy has the same files. The copy gets its name when it is complete.
void remote_models::update_version(const std::string& version) {
  const auto files = open();
  std::vector<std::string> names = files.list(version);
  std::erase_if(names, [](const std::string& name) { return !is_model_file(name); });
  std::ranges::sort(names);
  std::string state;
  for (const std::string& name : names) state += name + " " + files.version(version + "/" + name) + "\n";
  auto& [copied, seen] = states_[version];
  const bool is_complete = std::exchange(seen, state) == state || !has_started_;
  if (state.empty() || copied == state || !is_complete) return;
  const fs::path target = fs::path(folder_) / version;
  const fs::path part = target.parent_path() / ("." + target.filename().string());
  const fs::path old = part.string() + ".old";
  fs::remove_all(part);
  fs::create_directories(part);
  for (const std::string& name : names) {
    if (is_stopping()) return;
    files.copy(version + "/" + name, (part / name).string());
  }
  if (fs::exists(target)) fs::rename(target, old);  // as short as possible without a version of this number
  fs::rename(part, target);
  fs::remove_all(old);
  copied = state;
}

}  // namespace served
