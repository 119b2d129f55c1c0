// A plug-in that contains muster. plugin_host.cpp loads several such plug-ins.
#include <cstdio>
#include <exception>
#include <vector>

#include <muster/muster.hpp>

extern "C" __attribute__((visibility("default"))) int plugin_run(const char* name) {
  try {
    muster::context context;
    int status = 0;
    context.run([&](muster::group& world) {
      for (int round = 0; round < 20; ++round) {
        std::vector<float> values(1000, 1.0f);
        muster::allreduce(world, values, muster::sum);
        if (values.back() != float(world.size())) status = 1;
      }
      if (world.rank() == 0)
        std::printf("%s: %d ranks over %s\n", name, world.size(), context.transport_name().c_str());
      std::fflush(stdout);
    });
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}
