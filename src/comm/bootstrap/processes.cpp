#include "processes.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

namespace muster::inline v0::detail {
namespace {

struct process_status {
  char state = 'X';           // as ps shows it: X when there is no such process
  std::uint64_t started = 0;  // ticks since the system came up
};

process_status status_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  process_status read;
  const auto behind_name = text.rfind(')');  // a name may have any character
  if (behind_name == std::string::npos) return read;
  std::istringstream words(text.substr(behind_name + 1));
  std::string word;
  words >> read.state;
  for (int i = 1; i < 20; ++i) words >> word;  // the start is the 22nd word of all
  read.started = std::strtoull(word.c_str(), nullptr, 10);
  return read;
}

bool is_over(const process_status& of) { return of.state == 'X' || of.state == 'Z'; }

}  // namespace

process_identity process_identity::own() { return {::getpid(), status_of(::getpid()).started}; }

std::string process_numbers() {
  struct stat space {};
  return ::stat("/proc/self/ns/pid", &space) == 0 ? std::to_string(space.st_ino) : "";
}

life::life(const process_identity& whose)
    : file_(static_cast<int>(::syscall(SYS_pidfd_open, whose.process, 0))),  // none before Linux 5.3
      process_(whose.process) {
  const auto now = status_of(whose.process);
  was_over_ = is_over(now) || now.started != whose.started;
  if (was_over_) file_ = {};
}

bool life::ended() const noexcept {
  if (was_over_) return true;
  pollfd watched{file_.get(), POLLIN, 0};
  return file_ && ::poll(&watched, 1, 0) == 1 && (watched.revents & POLLIN) != 0;
}

bool life::is_stopped() const {
  const char state = was_over_ ? 'X' : status_of(process_).state;
  return state == 'T' || state == 't';
}

void life::kill() const noexcept {
  if (file_) (void)::syscall(SYS_pidfd_send_signal, file_.get(), SIGKILL, nullptr, 0);
}

}  // namespace muster::inline v0::detail
