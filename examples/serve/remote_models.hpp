// Models on an HTTP or S3 server.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/data/remote_files.hpp>

namespace served {

/// A local copy of a repository of models on a server, in a folder that ends with this object. A thread looks for new,
/// changed and removed versions. For each model it copies the two highest versions, so that the server has another one
/// if the highest does not load. After the start a version is copied when two successive looks have found the same
/// files, because its upload has then ended. While the server is away, the copies stay.
class remote_models {
 public:
  /// Copies the models at an address, which may have the options of a source of data (cache, disk, timeout). Throws the
  /// errors of muster::data::remote_files if the address has no list of models.
  remote_models(const std::string& address, muster::seconds period);
  remote_models(const remote_models&) = delete;
  remote_models& operator=(const remote_models&) = delete;
  ~remote_models();

  /// Returns the folder of the copies.
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  /// The server's versions of a version's files: when they were copied, and at the last look.
  struct states {
    std::string copied, seen;
  };

  void update();
  void update_model(const std::string& model);
  void update_version(const std::string& version);
  void run();
  // Opens the address. Each use opens it anew, because an open address holds all files that were copied from it.
  [[nodiscard]] muster::data::remote_files open() const { return muster::data::remote_files(address_, options_); }
  // Logs a problem with a model or a version ("" for the address), unless it was the last one there.
  void report(const std::string& name, const std::string& problem);
  template <class Action>
  void attempt(const std::string& name, Action action);
  [[nodiscard]] bool is_stopping();

  std::string address_, folder_;
  muster::seconds period_;
  muster::data::http_options options_;
  std::map<std::string, states> states_;         // by MODEL/VERSION
  std::map<std::string, std::string> problems_;  // by the name for report(): the last problem; empty: none
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_started_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace served
