#pragma once

#include <muster/comm/bootstrap/processes.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <sstream>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
struct process_status {
  char state = 'X';           // as ps shows it; X when there is no such process
  std::uint64_t started = 0;  // ticks since the system started
};

// Returns nothing if the system does not report a status: without /proc, without a free descriptor, or for a process
// that /proc hides from this user.
inline std::optional<process_status> status_of(pid_t process) {
  const std::string folder = "/proc/" + std::to_string(process);
  const descriptor file(::open((folder + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  struct stat own {};
  if (!file && errno == ENOENT && ::stat("/proc/self/stat", &own) == 0) {
    const bool is_gone = ::kill(process, 0) != 0 && errno == ESRCH;
    return is_gone ? std::optional(process_status()) : std::nullopt;
  }
  char buffer[1024];
  const auto got = file ? ::read(file.get(), buffer, sizeof buffer) : -1;
  if (got < 0) return errno == ESRCH ? std::optional(process_status()) : std::nullopt;
  const std::string text(buffer, static_cast<std::size_t>(got));
  const auto behind_name = text.rfind(')');  // the name may contain any character
  if (behind_name == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(behind_name + 1));
  process_status read;
  std::string word;
  words >> read.state;
  for (int i = 1; i < 20; ++i) words >> word;  // the start is word 22 of the line
  read.started = std::strtoull(word.c_str(), nullptr, 10);
  return read;
}

inline bool is_over(const process_status& status) { return status.state == 'X' || status.state == 'Z'; }

MUSTER_INLINE process_identity process_identity::own() {
  return {::getpid(), status_of(::getpid()).value_or(process_status()).started};
}

MUSTER_INLINE std::string process_namespaces() {
  std::string spaces;
  for (const char* const name : {"/proc/self/ns/pid", "/proc/self/ns/time"}) {
    struct stat space {};
    spaces += ::stat(name, &space) == 0 ? std::to_string(space.st_ino) + "/" : "/";
  }
  return spaces;
}

MUSTER_INLINE life::life(const process_identity& identity)
    : file_(static_cast<int>(::syscall(SYS_pidfd_open, identity.process, 0))), process_(identity.process) {
  const int code = file_ ? 0 : errno;
  if (code == EMFILE || code == ENFILE || code == ENOMEM) {
    throw error(error_kind::other, "process " + std::to_string(identity.process) + " on this host cannot be watched (" +
                                       std::strerror(code) + "); raise the limit of descriptors (ulimit -n)");
  }  // else the system has no pidfds: before Linux 5.3
  const auto status = status_of(identity.process);
  const bool is_other_process = status && identity.started != 0 && status->started != identity.started;
  was_over_ = code == ESRCH || (status && is_over(*status)) || is_other_process;
  if (was_over_) file_ = {};
}

MUSTER_INLINE bool life::ended() const noexcept {
  if (was_over_) return true;
  pollfd watched{file_.get(), POLLIN, 0};
  return file_ && ::poll(&watched, 1, 0) == 1 && (watched.revents & POLLIN) != 0;
}

MUSTER_INLINE bool life::is_stopped() const {
  const auto status = was_over_ ? std::nullopt : status_of(process_);
  return status && (status->state == 'T' || status->state == 't');
}

MUSTER_INLINE void life::kill() const noexcept {
  if (file_) (void)::syscall(SYS_pidfd_send_signal, file_.get(), SIGKILL, nullptr, 0);
}

}}}  // namespace muster::v0::detail
