// Makes a context before main, and before the static objects of other translation units.
#include <cstdio>

#include <muster/collectives.hpp>

static muster::context context;  // NOLINT: the program tests the order of static objects

int main() {
  bool is_right = true;
  context.run([&](muster::group& world) {
    const double ranks = muster::allreduce(world, 1.0, muster::sum);
    if (ranks != world.size()) is_right = false;
    if (world.rank() == 0) std::printf("%g of %d ranks\n", ranks, world.size());
  });
  return is_right ? 0 : 1;
}
