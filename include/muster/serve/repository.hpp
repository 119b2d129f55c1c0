// Models in a folder, each in versions: the newest that loads is served.
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

/// A version of a model that takes requests. Holding it keeps it there.
struct served_model {
  std::string name;
  std::uint64_t version;
  std::shared_ptr<model_statistics> statistics;  ///< of all versions
  batcher requests;
};

/// FOLDER/MODEL/VERSION/: a version is a whole number, and appears by a rename of its folder. A thread of the
/// repository looks for versions, loads the highest, lets it predict once and once in a full batch, and only then puts
/// it in the place of the one before, which answers what it has taken. A version that does not load is reported once
/// and left aside until its folder or a file in the folder changes: the highest that loads is served. A version that is
/// removed is not served any more. A version whose files are overwritten in place is served as it was loaded, until two
/// successive looks find the same files and these files load. Names have letters, digits and ".", "_", "-" alone. What
/// else is there is reported once; names that begin with ".", and folders of a model with a "." in their name, are not.
class repository {
 public:
  /// Makes a predictor of the folder of a version; what it throws says that the version is damaged.
  using load_function = std::function<any_predictor(const std::string& folder)>;

  /// Looks every `period`, from now on. Throws configuration_error if there is no such folder.
  repository(std::string folder, load_function load, const batch_options& options = {}, seconds period = seconds(1));
  repository(const repository&) = delete;
  repository& operator=(const repository&) = delete;
  ~repository();

  /// The version that is served; null if there is none. Thread safe, as all functions are.
  [[nodiscard]] std::shared_ptr<served_model> find(std::string_view name) const;
  /// Of all models, by name.
  [[nodiscard]] std::vector<std::shared_ptr<served_model>> all() const;
  /// Whether it has looked once, and a model is served.
  [[nodiscard]] bool is_ready() const;
  /// How many versions did not load.
  [[nodiscard]] std::uint64_t failed_loads() const;
  /// Looks now, and returns when what is there is served.
  void look();

 private:
  struct identity;  // of a folder
  struct entry;     // of a model
  void run();
  void look_at(const std::string& name);
  void leave_out(const std::string& path, const std::string& why);
  void replace(const std::string& name, std::shared_ptr<served_model> next);
  void end_retired();

  std::string folder_;
  load_function load_;
  batch_options options_;
  seconds period_;
  std::mutex looking_;                                     // held by a look
  std::map<std::string, std::unique_ptr<entry>> entries_;  // of looks
  std::vector<std::shared_ptr<served_model>> retired_;     // of looks
  std::set<std::string> left_out_;                         // of looks: what was said
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<served_model>, std::less<>> served_;
  std::uint64_t failed_loads_ = 0;
  bool has_looked_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}}}  // namespace muster::v0::serve
