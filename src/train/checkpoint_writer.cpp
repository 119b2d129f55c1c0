#include "checkpoint_writer.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include <muster/core/error.hpp>
#include "../core/scheduling.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// Rank 0 looks so often for the files of the others: no message tells it, so that a rank may die at any moment.
constexpr std::chrono::milliseconds between_looks(5);

// Long enough for a rank that lives to write its part; so long an error of rank 0 may take to be told where a rank has
// died amid a save.
constexpr std::chrono::seconds for_others_at_the_end(2);

// The first one that is not there yet; empty where all are.
std::string missing_of(const std::vector<std::string>& files) {
  const auto missing = std::ranges::find_if_not(files, [](const std::string& file) {
    std::error_code trouble;
    return std::filesystem::exists(file, trouble);
  });
  return missing == files.end() ? std::string() : *missing;
}

}  // namespace

checkpoint_writer::~checkpoint_writer() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return at_ > stage::own; });
  changed_.wait_for(lock, for_others_at_the_end, [this] { return at_ == stage::idle; });
}

void checkpoint_writer::start(checkpoint_files files) {
  at_ = stage::own;
  problem_.clear();
  thread_ = std::jthread([this, files = std::move(files)](const std::stop_token& given_up) { write(given_up, files); });
}

void checkpoint_writer::write(const std::stop_token& given_up, const checkpoint_files& files) {
  const auto on_piece = [this] {
    const std::lock_guard lock(mutex_);
    ++pieces_;
    changed_.notify_all();
  };
  lower_priority_of_this_thread();
  checkpoint_head head = files.head;
  try {
    head.rank = files.rank;
    if (!own_parts.empty()) write_checkpoint(files.own, head, own_parts, on_piece);
    reach(stage::shared);
    if (!files.shared.empty()) {
      while (!missing_of(files.others).empty() && !given_up.stop_requested()) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, given_up, between_looks, [] { return false; });
      }
      // NFS may go on saying that a file is missing, for up to a minute, until its folder is opened anew.
      std::error_code ignored;
      (void)std::filesystem::directory_iterator(std::filesystem::path(files.shared).parent_path(), ignored);
      if (const std::string missing = missing_of(files.others); !missing.empty()) {
        throw configuration_error("the part of another rank is not in the folder (there is no '" + missing +
                                  "': that rank has another folder, or has ended); let all ranks see one folder");
      }
      head.rank = checkpoint_head::all_ranks;
      write_checkpoint(files.shared, head, shared_parts, on_piece);
      files.completed();
    }
  } catch (const std::exception& failed) {
    const std::lock_guard lock(mutex_);
    problem_ = failed.what();
  }
  reach(stage::idle);
}

void checkpoint_writer::reach(stage next) {
  const std::lock_guard lock(mutex_);
  at_ = next;
  changed_.notify_all();
}

void checkpoint_writer::wait_for_own(const std::function<void()>& on_piece) { wait_beyond(stage::own, on_piece); }

void checkpoint_writer::wait_for_all(const std::function<void()>& on_piece) {
  thread_.request_stop();
  wait_beyond(stage::shared, on_piece);
}

void checkpoint_writer::wait_beyond(stage last, const std::function<void()>& on_piece) {
  std::unique_lock lock(mutex_);
  while (at_ <= last) {
    const std::size_t seen = pieces_;
    changed_.wait(lock, [&] { return at_ > last || pieces_ != seen; });
    if (pieces_ == seen) continue;
    lock.unlock();
    on_piece();
    lock.lock();
  }
  if (!problem_.empty()) throw configuration_error(problem_);
}

}}}  // namespace muster::v0::detail
