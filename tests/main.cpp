// The main function of every test program, compiled once.
#if MUSTER_CATCH2_VERSION < 3
#define CATCH_CONFIG_RUNNER
#endif
#include "catch.hpp"

int main(int argc, char** argv) {
  Catch::Session session;
#if MUSTER_CATCH2_VERSION < 3
  // A name or tag that no case has is a mistake of the entry that names it; Catch2 3 ends with an error by itself.
  auto& warnings = session.configData().warnings;
  warnings = static_cast<Catch::WarnAbout::What>(warnings | Catch::WarnAbout::NoTests);
#endif
  return session.run(argc, argv);
}
