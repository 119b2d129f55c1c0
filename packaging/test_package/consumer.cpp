// The ranks add their numbers.
#include <cstdio>

#include <muster/collectives.hpp>

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context) {
    context.run([](muster::group& world) {
      const int sum = muster::allreduce(world, world.rank() + 1, muster::sum);
      if (world.rank() == 0) std::printf("%d ranks, sum %d\n", world.size(), sum);
    });
  });
}
