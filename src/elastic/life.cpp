#include "life.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>

namespace muster::inline v0::detail {
namespace {

// Ticks since the system came up; 0 when there is no such process. A zombie has ended.
std::uint64_t start_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto behind_name = text.rfind(')');  // a name may have any character
  if (behind_name == std::string::npos) return 0;
  std::istringstream words(text.substr(behind_name + 1));
  std::string word;
  for (int i = 0; i < 20 && words >> word; ++i) {
    if (i == 0 && (word == "Z" || word == "X")) return 0;
  }
  return std::strtoull(word.c_str(), nullptr, 10);
}

}  // namespace

process_identity process_identity::own() { return {::getpid(), start_of(::getpid())}; }

std::string process_numbers() {
  struct stat space {};
  return ::stat("/proc/self/ns/pid", &space) == 0 ? std::to_string(space.st_ino) : "";
}

life::life(const process_identity& whose)
    : file_(static_cast<int>(::syscall(SYS_pidfd_open, whose.process, 0))) {  // none before Linux 5.3
  was_over_ = (!file_ && errno == ESRCH) || start_of(whose.process) != whose.started;
  if (was_over_) file_ = {};
}

bool life::ended() const noexcept {
  if (was_over_) return true;
  pollfd watched{file_.get(), POLLIN, 0};
  return file_ && ::poll(&watched, 1, 0) == 1 && (watched.revents & POLLIN) != 0;
}

void life::kill() const noexcept {
  if (file_) (void)::syscall(SYS_pidfd_send_signal, file_.get(), SIGKILL, nullptr, 0);
}

}  // namespace muster::inline v0::detail
