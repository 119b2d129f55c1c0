// Uses nothing of muster but its registry: the parts that the program is linked with are there all the same.
#include <cstdio>

#include <muster/core/plugin.hpp>

int main() {
  for (const auto& name : muster::plugin_names()) std::printf("%s ", name.c_str());
  std::printf("are linked\n");
}
