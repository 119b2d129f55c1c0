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
/// if the highest does not load. While the server is away, the copies stay.
class remote_models {
 public:
  /// Copies the models at an address. Throws the errors of muster::data::remote_files if this fails.
  remote_models(const std::string& address, muster::seconds period);
  remote_models(const remote_models&) = delete;
  remote_models& operator=(const remote_models&) = delete;
  ~remote_models();

  /// Returns the folder of the copies.
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  void update();
  void update_model(const std::string& model);
  void update_version(const std::string& version);
  void run();

  std::string address_, folder_;
  muster::seconds period_;
  muster::data::remote_files files_;
  std::map<std::string, std::string> states_;  // by MODEL/VERSION: the server's versions of its files
  std::string last_problem_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace served
