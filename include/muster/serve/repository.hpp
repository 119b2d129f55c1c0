// A folder of models with numbered versions. The highest version that loads is served.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/serve/batcher.hpp>

namespace muster { inline namespace v0 { namespace serve {

/// A version of a model that accepts requests. The version remains usable while a caller holds the pointer to it.
struct served_model {
  std::string name;
  std::uint64_t version;
  std::shared_ptr<model_statistics> statistics;  ///< statistics for all versions of the model
  batcher requests;
};

/// A folder with the layout FOLDER/MODEL/VERSION/. A version is a whole number. A new version must be added atomically,
/// by renaming its folder.
///
/// A thread of the repository scans the folder periodically. It loads a model's highest version and warms it up with a
/// prediction for a single row and for a full batch. Then the new version replaces the previous version, which
/// completes its pending requests. A version that fails to load is reported once, and is skipped until its folder or a
/// file in the folder changes; the next lower version that loads is served meanwhile. A removed version is no longer
/// served. If files of the served version are overwritten in place, the repository serves the loaded version until two
/// successive scans find the same files and these files load.
///
/// A model's name has only letters, digits and ".", "_", "-". Other entries of the folders are reported once and
/// ignored. Entries that begin with ".", and folders of a model with a "." in their name, are ignored without a report.
class repository {
 public:
  /// A function that loads a version from its folder. An exception marks the version as damaged.
  using load_function = std::function<any_predictor(const std::string& folder)>;

  /// Starts to scan the folder once every `period`. Throws configuration_error if the folder does not exist.
  repository(std::string folder, load_function load, const batch_options& options = {}, seconds period = seconds(1));
  repository(const repository&) = delete;
  repository& operator=(const repository&) = delete;
  ~repository();

  /// Returns the served version of a model, or null if the model is not served. All functions are thread safe.
  [[nodiscard]] std::shared_ptr<served_model> find(std::string_view name) const;
  /// Returns every model's served version, in the order of names.
  [[nodiscard]] std::vector<std::shared_ptr<served_model>> all() const;
  /// Returns true after the first scan, if a model is served.
  [[nodiscard]] bool is_ready() const;
  /// Returns the number of versions that failed to load.
  [[nodiscard]] std::uint64_t failed_loads() const;
  /// Scans the folder now. Returns when the versions that were found are served.
  void scan();

 private:
  struct identity;  // identity of a version's folder
  struct entry;     // state of a model
  void run();
  void scan_models();
  void scan_model(const std::string& name);
  void ignore_entry(const std::string& path, const std::string& reason);
  /// Serves `next` under this name from now on; null: no version is served. Keeps the replaced version in `retired_`.
  void replace(const std::string& name, std::shared_ptr<served_model> next);
  void destroy_retired();

  std::string folder_;
  load_function load_;
  batch_options options_;
  seconds period_;
  std::mutex scanning_;                                    // held during a scan
  std::map<std::string, std::unique_ptr<entry>> entries_;  // each model's state; guarded by scanning_
  std::vector<std::shared_ptr<served_model>> retired_;     // replaced versions; guarded by scanning_
  std::set<std::string> ignored_entries_;                  // entries that were reported; guarded by scanning_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<std::string, std::shared_ptr<served_model>, std::less<>> served_;
  std::uint64_t failed_loads_ = 0;
  bool has_scanned_ = false;  // written while both mutexes are held
  bool stopping_ = false;
  std::thread thread_;
};

}}}  // namespace muster::v0::serve
