// Descriptors in a process whose standard streams are closed.
#include <muster/core/descriptor.hpp>

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <fstream>
#include <string>

#include <muster/core/atomic_file.hpp>

#include "catch.hpp"

namespace {

using muster::detail::descriptor;

// Runs `body` in a child process without the standard streams, and returns the child's status.
template <class Body>
int status_without_streams(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (int number = 0; number <= STDERR_FILENO; ++number) ::close(number);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("no descriptor takes the number of a standard stream that is closed") {
  CHECK(status_without_streams([] {
          const descriptor files[] = {descriptor(::memfd_create("test", MFD_CLOEXEC)),
                                      descriptor(::eventfd(0, EFD_CLOEXEC)),
                                      descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))};
          for (const descriptor& file : files) {
            if (file.get() <= STDERR_FILENO || ::fcntl(file.get(), F_GETFD) != FD_CLOEXEC) return 1;
          }
          for (int number = 0; number <= STDERR_FILENO; ++number) {
            if (::fcntl(number, F_GETFD) != -1) return 2;
          }
          return 0;
        }) == 0);
}

TEST_CASE("a file that a process without standard streams writes has no printed text") {
  const std::string path = muster::temporary_folder() + "/muster-test-" + std::to_string(::getpid());
  CHECK(status_without_streams([&] {
          muster::atomic_file file(path);
          file.write("kept");
          (void)!::write(STDIN_FILENO, "text", 4);
          (void)!::write(STDOUT_FILENO, "text", 4);
          file.commit();
          return 0;
        }) == 0);
  std::string text;
  std::ifstream(path) >> text;
  CHECK(text == "kept");
  ::unlink(path.c_str());
}

TEST_CASE("standard streams that are closed are held by the null device, and the others stay") {
  CHECK(status_without_streams([] {
          const int full = ::open("/dev/full", O_RDWR);  // as standard input
          muster::detail::prepare_process();
          const int next = ::open("/dev/null", O_RDWR);
          const bool is_full = ::write(full, "x", 1) < 0;
          return next > STDERR_FILENO && is_full && ::write(STDOUT_FILENO, "x", 1) == 1 ? 0 : 1;
        }) == 0);
}
