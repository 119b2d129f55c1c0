// What each of the consumers compiles.
#include <cstdio>
#include <muster/core/env.hpp>

int main(int argc, char** argv) {
  const muster::settings settings(argc, argv);
  std::printf("%s\n", settings.value(muster::setting::ranks).c_str());
}
