// The main function of every test program, compiled once.
#if MUSTER_CATCH2_VERSION < 3
#define CATCH_CONFIG_MAIN
#endif
#include "catch.hpp"
#if MUSTER_CATCH2_VERSION >= 3
int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
#endif
