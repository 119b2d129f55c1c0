#include "range_files.hpp"

#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include <muster/core/clock.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

namespace muster::inline v0::ps::detail {
namespace {

constexpr seconds save_patience{5.0};
constexpr std::chrono::milliseconds between_tries{100};

std::uint32_t checksum(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

// Nothing when it is not whole: it was removed, or is not written to its end.
std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::uint32_t sum = 0;
  if (!file || text.size() < sizeof sum) return std::nullopt;
  std::memcpy(&sum, text.data() + text.size() - sizeof sum, sizeof sum);
  text.resize(text.size() - sizeof sum);
  if (checksum(text) != sum) return std::nullopt;
  return text;
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  const std::uint32_t sum = checksum(text);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.write(reinterpret_cast<const char*>(&sum), sizeof sum);
  file.close();
  if (!file) throw error(error_kind::other, "'" + path.string() + "' cannot be written");
}

std::filesystem::path folder_of(const std::filesystem::path& folder, std::string job) {
  for (char& c : job) c = c == '/' ? '-' : c;
  return folder / ("muster-" + job);
}

}  // namespace

range_files::range_files(std::shared_ptr<any_store> store, const std::string& job, const std::filesystem::path& folder)
    : store_(std::move(store)), key_(job + "/saved/"), folder_(folder_of(folder, job)) {
  std::error_code failed;
  std::filesystem::create_directories(folder_, failed);
  if (failed || !std::filesystem::is_directory(folder_)) {
    throw configuration_error("the folder '" + folder.string() + "' cannot keep the ranges of this server (" +
                              (failed ? failed.message() : "it is none") +
                              "); choose one that all servers can write to: --recover FOLDER");
  }
  worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

void range_files::save(range_id range, std::uint64_t epoch, std::uint64_t index, std::string state) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back({false, range, epoch, index, false, std::move(state)});
  wanted_.notify_one();
}

// Before what is to be saved: somebody waits for it.
void range_files::load(range_id range, std::uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  jobs_.push_front({true, range, epoch, 0, false, {}});
  wanted_.notify_one();
}

std::optional<range_files::result> range_files::take() {
  const std::lock_guard lock(mutex_);
  if (results_.empty()) return std::nullopt;
  auto first = std::move(results_.front());
  results_.pop_front();
  return first;
}

void range_files::clear() {
  worker_.request_stop();
  worker_.join();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void range_files::work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    result job;
    {
      std::unique_lock lock(mutex_);
      if (!wanted_.wait(lock, stop, [&] { return !jobs_.empty(); })) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    try {
      if (job.loads) {
        auto state = do_load(job);
        if (!state) continue;  // others have it
        job.state = std::move(*state);
      } else {
        job.done = do_save(job);
        job.state.clear();
      }
    } catch (const std::exception& trouble) {
      log(log_level::warning, std::string("ranges cannot be ") + (job.loads ? "taken over" : "saved") + " now (" +
                                  trouble.what() + "); it is tried again");
      std::this_thread::sleep_for(between_tries);
      const std::lock_guard lock(mutex_);
      if (job.loads) {
        jobs_.push_front(std::move(job));
        continue;
      }
      job.state.clear();
    }
    const std::lock_guard lock(mutex_);
    results_.push_back(std::move(job));
  }
}

range_files::entry range_files::look(range_id range) {
  const auto found = store_->get(key_ + std::to_string(range), deadline_after(save_patience));
  entry read;
  read.version = found.version;
  const char* const end = found.value.data() + found.value.size();
  const auto [rest, code] = std::from_chars(found.value.data(), end, read.epoch);
  if (found && code == std::errc() && rest != end) read.name.assign(rest + 1, end);
  return read;
}

bool range_files::become(range_id range, const entry& before, std::uint64_t epoch, const std::string& name) {
  const auto text = std::to_string(epoch) + " " + name;
  return store_->compare_and_swap(key_ + std::to_string(range), before.version, text, deadline_after(save_patience))
      .swapped;
}

bool range_files::do_save(const result& job) {
  const auto name = std::to_string(job.range) + "-" + std::to_string(job.epoch) + "-" + std::to_string(job.index);
  write_file(folder_ / name, job.state);
  std::error_code ignored;
  for (;;) {
    const auto before = look(job.range);
    if (before.epoch > job.epoch) {
      std::filesystem::remove(folder_ / name, ignored);
      return false;
    }
    if (!become(job.range, before, job.epoch, name)) continue;
    if (!before.name.empty() && before.name != name) std::filesystem::remove(folder_ / before.name, ignored);
    return true;
  }
}

std::optional<std::string> range_files::do_load(const result& job) {
  const auto until = deadline_after(save_patience);
  for (;;) {
    const auto before = look(job.range);
    if (before.epoch > job.epoch) return std::nullopt;
    std::optional<std::string> state("");
    if (!before.name.empty()) state = read_file(folder_ / before.name);
    if (state && become(job.range, before, job.epoch, before.name)) return state;
    if (clock::now() < until) continue;
    throw error(error_kind::other, "'" + (folder_ / before.name).string() + "' cannot be read");
  }
}

}  // namespace muster::inline v0::ps::detail
