// The program that each consumer compiles: two ranks, started by a launcher or as threads, that connect to each other.
#include <cstdio>
#include <string>
#include <vector>

#include <muster/muster.hpp>

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context) {
    context.run([&](muster::group& world) {
      std::vector<float> data(1000, float(world.rank() + 1));
      muster::allreduce(world, data, muster::sum);
      muster::broadcast(world, data, 1);
      const int right = muster::allreduce(world, data.front() == 3 && data.back() == 3 ? 1 : 0, muster::min);
      if (world.size() != 2 || right != 1) throw muster::error(muster::error_kind::other, "the two ranks disagree");
      if (world.rank() == 0) std::printf("2 ranks over %s\n", context.transport_name().c_str());
    });
  });
}
