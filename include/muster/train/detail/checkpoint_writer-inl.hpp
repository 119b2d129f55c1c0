#pragma once

#include <muster/train/checkpoint_writer.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/scheduling.hpp>

namespace muster { inline namespace v0 { namespace detail {
// Interval at which rank 0 polls for the files of the other ranks. No message announces a file, so a rank may die at
// any moment.
inline constexpr std::chrono::milliseconds poll_interval(5);

// Time that suffices for a living rank to write its part. Also the delay of an error at rank 0 when another rank has
// died during a save.
inline constexpr std::chrono::seconds timeout_at_the_end(2);

// Returns the first file that does not exist; empty if all exist.
inline std::string first_missing(const std::vector<std::string>& files) {
  const auto missing = std::ranges::find_if_not(files, [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  });
  return missing == files.end() ? std::string() : *missing;
}

MUSTER_INLINE checkpoint_writer::~checkpoint_writer() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stage_ > stage::own; });
  changed_.wait_for(lock, timeout_at_the_end, [this] { return stage_ == stage::idle; });
}

MUSTER_INLINE void checkpoint_writer::start(checkpoint_files files) {
  stage_ = stage::own;
  problem_.clear();
  thread_ = std::jthread([this, files = std::move(files)](const std::stop_token& stop) { write(stop, files); });
}

MUSTER_INLINE void checkpoint_writer::write(const std::stop_token& stop, const checkpoint_files& files) {
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
      while (!first_missing(files.other_files).empty() && !stop.stop_requested()) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, stop, poll_interval, [] { return false; });
      }
      // NFS may report a file as missing for up to a minute, until its folder is opened again.
      std::error_code ignored;
      (void)std::filesystem::directory_iterator(std::filesystem::path(files.shared).parent_path(), ignored);
      if (const std::string missing = first_missing(files.other_files); !missing.empty()) {
        throw configuration_error(
            "the part of another rank is missing in the folder (there is no '" + missing +
            "': that rank uses another folder, or has ended); use one folder that all ranks share");
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

MUSTER_INLINE void checkpoint_writer::reach(stage next) {
  const std::lock_guard lock(mutex_);
  stage_ = next;
  changed_.notify_all();
}

MUSTER_INLINE void checkpoint_writer::wait_for_own(const std::function<void()>& on_piece) {
  wait_beyond(stage::own, on_piece);
}

MUSTER_INLINE void checkpoint_writer::wait_for_all(const std::function<void()>& on_piece) {
  thread_.request_stop();
  wait_beyond(stage::shared, on_piece);
}

MUSTER_INLINE void checkpoint_writer::wait_beyond(stage last, const std::function<void()>& on_piece) {
  std::unique_lock lock(mutex_);
  while (stage_ <= last) {
    const std::size_t seen = pieces_;
    changed_.wait(lock, [&] { return stage_ > last || pieces_ != seen; });
    if (pieces_ == seen) continue;
    lock.unlock();
    on_piece();
    lock.lock();
  }
  if (!problem_.empty()) throw configuration_error(problem_);
}
}}}  // namespace muster::v0::detail
