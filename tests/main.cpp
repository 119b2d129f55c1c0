// The main function of every test program, compiled once.
#if MUSTER_CATCH2_VERSION < 3
#define CATCH_CONFIG_RUNNER
#endif
#include "catch.hpp"

int main(int argc, char** argv) {
  Catch::Session session;
#if MUSTER_CATCH2_VERSION < 3
  // A name or tag without a test case is an error in the entry that uses it; Catch2 3 exits with an error itself.
  auto& warnings = session.configData().warnings;
  warnings = static_cast<Catch::WarnAbout::What>(warnings | Catch::WarnAbout::NoTests);
#endif
  return session.run(argc, argv);
}
