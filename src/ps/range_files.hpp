// Ranges in files, from which others take them over: which file counts is decided in the store.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <muster/comm/rendezvous/store.hpp>
#include <muster/ps/shard_map.hpp>

namespace muster::inline v0::ps::detail {

/// Saves and loads states of ranges on a thread of its own, in a folder that all servers of a job reach. The store has
/// under one key a range the epoch of whoever had it last, and the name of the file: a server whose epoch is older than
/// that changes nothing any more. All calls but those of the thread are its owner's and do not block.
///
/// Files are not flushed to the disk: they are for the death of processes, not of the machine that has the folder.
class range_files {
 public:
  /// What came of a `save`, or what was to be loaded.
  struct result {
    bool loads = false;
    range_id range = 0;
    std::uint64_t epoch = 0;
    std::uint64_t index = 0;
    bool done = false;  ///< saved, and found by others
    std::string state;  ///< loaded; empty: nothing was saved
  };

  /// `job` names the job in the store and in the folder. Throws configuration_error when the folder cannot be made.
  range_files(std::shared_ptr<any_store> store, const std::string& job, const std::filesystem::path& folder);
  range_files(const range_files&) = delete;
  range_files& operator=(const range_files&) = delete;

  void save(range_id range, std::uint64_t epoch, std::uint64_t index, std::string state);
  /// Tries again until it is there; gives nothing to whoever has an older epoch.
  void load(range_id range, std::uint64_t epoch);
  [[nodiscard]] std::optional<result> take();
  /// The job is over: nobody needs the files any more.
  void clear();

 private:
  struct entry {
    std::uint64_t version = 0;  // in the store
    std::uint64_t epoch = 0;
    std::string name;  // empty: nothing was saved
  };
  void work(const std::stop_token& stop);
  [[nodiscard]] bool do_save(const result& job);
  [[nodiscard]] std::optional<std::string> do_load(const result& job);
  [[nodiscard]] entry look(range_id range);
  [[nodiscard]] bool become(range_id range, const entry& before, std::uint64_t epoch, const std::string& name);

  std::shared_ptr<any_store> store_;
  std::string key_;
  std::filesystem::path folder_;
  std::mutex mutex_;
  std::condition_variable_any wanted_;
  std::deque<result> jobs_;
  std::deque<result> results_;
  std::jthread worker_;
};

}  // namespace muster::inline v0::ps::detail
