// A PostgreSQL server that a test starts and stops.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "files.hpp"

/// A PostgreSQL server that listens on a socket in a temporary folder, and is stopped with this object. It cannot run
/// as root. A test reports if the server cannot be started.
class postgres_server {
 public:
  postgres_server() {
    if (programs_.empty()) {
      std::cout << "SKIPPED: no PostgreSQL server is installed (Debian: postgresql-15)\n";
      return;
    }
    if (::getuid() == 0) {
      user_ = "runuser -u postgres -- ";
      std::filesystem::permissions(folder_ / "", std::filesystem::perms::all);
    }
    const std::string data = folder_ / "data";
    started_ = run("initdb -D " + data + " -A trust -N -U muster") && start();
    if (!started_) std::cout << "SKIPPED: a PostgreSQL server cannot be started here\n";
  }
  ~postgres_server() {
    if (started_) stop();
  }
  bool start() const {
    const std::string data = folder_ / "data";
    return run("pg_ctl -D " + data + " -w -t 60 -l " + data + "/log -o \"-k " + data + " -h '' -F\" start");
  }
  void stop() const { run("pg_ctl -D " + (folder_ / "data") + " -m immediate stop"); }
  postgres_server(const postgres_server&) = delete;
  postgres_server& operator=(const postgres_server&) = delete;

  bool started() const { return started_; }
  /// Runs a statement that returns no rows.
  bool command(const std::string& statement) const {
    return run("psql -q -h " + (folder_ / "data") + " -U muster postgres -c \"" + statement + "\"");
  }
  std::string connection() const { return "host=" + (folder_ / "data") + " user=muster dbname=postgres"; }

 private:
  bool run(const std::string& command) const {
    return std::system(("cd / && " + user_ + programs_ + "/" + command + " >/dev/null 2>&1").c_str()) == 0;
  }
  static std::string server_programs() {
    namespace fs = std::filesystem;
    std::error_code ignored;
    for (const auto& version : fs::directory_iterator("/usr/lib/postgresql", ignored)) {
      if (fs::exists(version.path() / "bin/initdb")) return (version.path() / "bin").string();
    }
    return {};
  }
  const std::string programs_ = server_programs();  // folder of PostgreSQL's programs; empty if they are not installed
  std::string user_;
  temporary_folder folder_;
  bool started_ = false;
};
