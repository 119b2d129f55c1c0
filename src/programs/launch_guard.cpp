#include "launch_guard.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <system_error>
#include <vector>

#include <muster/core/number.hpp>

#include <muster/core/random_bytes.hpp>

namespace {

struct process_entry {
  pid_t parent = 0;
  bool is_found = false;
};

// Returns the text of a file below /proc; empty if the process has ended, even during the read.
std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// Returns all running processes in /proc. A process is marked as found if its environment has `entry`, which is a
/// whole variable or a prefix.
std::map<pid_t, process_entry> all_processes(const std::string& environment_entry) {
  std::map<pid_t, process_entry> all;
  std::error_code failed;
  for (std::filesystem::directory_iterator at("/proc", failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename();
    const auto number = muster::parse_number<pid_t>(name);
    if (!number) continue;
    const std::string status = text_of("/proc/" + name + "/stat");
    const auto named = status.rfind(')');  // The process name before this position may contain any characters.
    if (named == std::string::npos) continue;
    std::istringstream fields(status.substr(named + 1));
    char state = 0;
    process_entry entry_of_process;
    fields >> state >> entry_of_process.parent;
    if (state == 'Z' || state == 'X') continue;
    entry_of_process.is_found =
        ('\0' + text_of("/proc/" + name + "/environ")).find('\0' + environment_entry) != std::string::npos;
    all.emplace(*number, entry_of_process);
  }
  return all;
}

/// Signals the processes with `environment_entry` in their environment, their descendants, and the descendants of
/// `ancestor` (-1: none), except this process. Returns the number of signalled processes.
std::size_t signal_processes_with(const std::string& environment_entry, pid_t ancestor, int signal) {
  auto all = all_processes(environment_entry);
  for (bool has_more = true; has_more;) {
    has_more = false;
    for (auto& [number, candidate] : all) {
      const auto parent = all.find(candidate.parent);
      const bool is_of = candidate.parent == ancestor || (parent != all.end() && parent->second.is_found);
      if (candidate.is_found || !is_of) continue;
      candidate.is_found = has_more = true;
    }
  }
  const pid_t own = ::getpid();
  std::size_t count = 0;
  for (const auto& [number, process] : all) {
    if (!process.is_found || number == own) continue;
    if (::kill(number, signal) == 0) ++count;
  }
  return count;
}

/// Overwrites this process's arguments and variables in the list of processes, so that a search for the launcher or its
/// variables does not find this process.
void hide_arguments(int argc, char** argv) {
  char* end = argv[argc - 1] + std::strlen(argv[argc - 1]);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (*variable == end + 1) end = *variable + std::strlen(*variable);
  }
  std::memset(argv[0], 0, static_cast<std::size_t>(end - argv[0]));
  ::prctl(PR_SET_NAME, "muster-guard");
}

/// The main function of the forked guard process.
[[noreturn]] void watch(pid_t launcher, const std::string& entry, int argc, char** argv) {
  constexpr int rounds = 250, pause = 20'000;  // Pause in microseconds.
  const int alive = static_cast<int>(::syscall(SYS_pidfd_open, launcher, 0));
  if (alive < 0 || ::setsid() < 0 || ::dup2(alive, 0) < 0 || ::chdir("/") != 0) ::_exit(1);
  ::syscall(SYS_close_range, 1, ~0U, 0);  // Callers of the launcher may wait until its output ends.
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  hide_arguments(argc, argv);
  pollfd ended{0, POLLIN, 0};
  while (::poll(&ended, 1, -1) < 0) {
  }
  for (int k = 0; k < rounds && signal_processes_with(entry, -1, SIGKILL) > 0; ++k) ::usleep(pause);
  ::_exit(0);
}

}  // namespace

launch_guard::launch_guard(int argc, char** argv) : id_(muster::detail::random_token().substr(0, 16)) {
  const pid_t own = ::getpid();
  const pid_t between = ::fork();  // Ends at once, so that the guard gets another parent.
  if (between == 0) {
    if (::fork() == 0) watch(own, std::string(variable) + "=" + id_ + ".", argc, argv);
    ::_exit(0);
  }
  if (between > 0) ::waitpid(between, nullptr, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::size_t launch_guard::signal_started_by(int process, int signal) const {
  return signal_processes_with(std::string(variable) + "=" + value_for(process) + '\0', -1, signal);
}

std::size_t launch_guard::signal_all(int signal) const {
  return signal_processes_with(std::string(variable) + "=" + id_ + ".", ::getpid(), signal);
}
