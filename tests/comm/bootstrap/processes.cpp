// The observation of the processes of a host.
#include <muster/comm/bootstrap/processes.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/core/error.hpp>

#include "catch.hpp"

using muster::detail::life;
using muster::detail::process_identity;

TEST_CASE("a process has ended when there is proof, and not when nothing can be known") {
  const auto own = process_identity::own();
  CHECK(own.started != 0);
  CHECK_FALSE(life(own).ended());
  CHECK(life({own.process, own.started + 1}).ended());  // an earlier process with that number
  CHECK_FALSE(life({own.process, 0}).ended());          // its start time is unknown
  const pid_t child = ::fork();
  if (child == 0) ::pause();
  const life watched({child, 0});
  CHECK_FALSE(watched.ended());
  CHECK_FALSE(watched.is_stopped());
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(watched.ended());
  CHECK(life({child, 0}).ended());
}

TEST_CASE("without a descriptor a process that lives is not taken for dead") {
  const auto own = process_identity::own();
  const pid_t child = ::fork();  // has its own limit
  if (child == 0) {
    const int next = ::open("/dev/null", O_RDONLY);
    const rlimit none{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
    ::close(next);
    if (::setrlimit(RLIMIT_NOFILE, &none) != 0) ::_exit(1);
    try {
      ::_exit(life(own).ended() ? 2 : 3);
    } catch (const muster::error&) {
      ::_exit(0);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
