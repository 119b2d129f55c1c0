// A context that is made before main, and before what other units of this program have at their start.
#include <cstdio>

#include <muster/collectives.hpp>

static muster::context context;  // NOLINT: the order of static objects is what this looks at

int main() {
  int right = 1;
  context.run([&](muster::group& world) {
    const double ranks = muster::allreduce(world, 1.0, muster::sum);
    if (ranks != world.size()) right = 0;
    if (world.rank() == 0) std::printf("%g of %d ranks\n", ranks, world.size());
  });
  return right == 1 ? 0 : 1;
}
