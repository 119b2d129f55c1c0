#include <muster/comm/bootstrap/host_identity.hpp>

#include "catch.hpp"
#include "command_line.hpp"

TEST_CASE("one process is on one host, which a setting may call something else") {
  const muster::settings plain;
  CHECK(muster::host_identity(plain) == muster::host_identity(plain));
  CHECK_FALSE(muster::host_identity(plain).empty());
  test::command_line line({"app", "--host", "a"});
  const muster::settings named(line.argc, line.argv());
  CHECK(muster::host_identity(named) == "a");
}
