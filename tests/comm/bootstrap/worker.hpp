// Other processes that use a store.
#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "places.hpp"

namespace places {

/// Another process at the same store, whose commands worker.cpp lists. It is killed at the end if it still runs.
class worker {
 public:
  worker(const place& at, std::vector<std::string> command) {
    std::vector<std::string> line{MUSTER_TEST_STORE_WORKER};
    line.insert(line.end(), at.words.begin(), at.words.end());
    line.emplace_back("--");
    line.insert(line.end(), command.begin(), command.end());
    std::vector<char*> arguments;
    for (auto& word : line) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    if (::posix_spawn(&process_, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) {
      throw std::runtime_error("the worker cannot be started");
    }
  }
  worker(worker&& other) noexcept : process_(std::exchange(other.process_, 0)) {}
  worker& operator=(worker&&) = delete;
  ~worker() {
    if (process_ == 0) return;
    send(SIGKILL);
    (void)wait();
  }
  void send(int signal) const { ::kill(process_, signal); }
  /// Stops the process; on return no thread of the process runs any more.
  void stop() const {
    send(SIGSTOP);
    int status = 0;
    while (::waitpid(process_, &status, WUNTRACED) < 0 && errno == EINTR) {
    }
  }
  /// Returns the exit status, or minus the signal that ended the process.
  int wait() {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t process_ = 0;
};

}  // namespace places
