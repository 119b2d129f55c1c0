#include "remote_models.hpp"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>

namespace served {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_versions = 2;

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

}  // namespace

remote_models::remote_models(const std::string& address, muster::seconds period)
    : address_(address),
      folder_(muster::temporary_folder() + "/muster-models-XXXXXX"),
      period_(period),
      files_(address) {
  if (::mkdtemp(folder_.data()) == nullptr)
    throw muster::configuration_error("the models of " + address +
                                      " cannot be copied (no folder can be made for them); set TMPDIR");
  try {
    update();
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    throw;
  }
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

void remote_models::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, period_, [&] { return stopping_; })) {
    lock.unlock();
    std::string problem;
    try {
      update();
    } catch (const std::exception& failed) {
      problem = failed.what();
    }
    if (!problem.empty() && last_problem_.empty())
      muster::log(muster::log_level::warning, "the models of " + address_ + " cannot be compared (" + problem +
                                                  "); those that are here are served, until the server answers again");
    last_problem_ = problem;
    lock.lock();
  }
}

void remote_models::update() {
  const auto models = files_.list();
  for (const std::string& model : models)
    if (model.find('.') == std::string::npos) update_model(model);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder_))
    if (std::ranges::find(models, entry.path().filename().string()) == models.end()) fs::remove_all(entry, ignored);
}

void remote_models::update_model(const std::string& model) {
  auto versions = versions_in(files_.list(model));
  if (versions.size() > most_versions) versions.erase(versions.begin() + most_versions, versions.end());
  for (const auto version : versions) update_version(model + "/" + std::to_string(version));
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(folder_) / model, ignored)) {
    const std::string name = entry.path().filename().string();
    const auto is_it = [&](std::uint64_t version) { return std::to_string(version) == name; };
    if (std::ranges::any_of(versions, is_it)) continue;
    fs::remove_all(entry, ignored);
    states_.erase(model + "/" + name);
  }
}

// Copies a version, unless the copy has the same files. The copy gets its name when it is complete.
void remote_models::update_version(const std::string& version) {
  std::vector<std::string> names = files_.list(version);
  std::ranges::sort(names);
  std::string state;
  for (const std::string& name : names) state += name + " " + files_.version(version + "/" + name) + "\n";
  if (state.empty() || states_[version] == state) return;
  const fs::path target = fs::path(folder_) / version;
  const fs::path part = target.parent_path() / ("." + target.filename().string());
  fs::remove_all(part);
  fs::create_directories(part);
  for (const std::string& name : names) files_.copy(version + "/" + name, (part / name).string());
  fs::remove_all(target);
  fs::rename(part, target);
  states_[version] = state;
}

}  // namespace served
