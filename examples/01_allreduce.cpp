// A collective: every rank has numbers, and every rank receives their sum.
//
//   $ 01_allreduce --ranks 4
//   4 ranks: the sum of 0 to 3 is 6, and the mean of the vectors begins with 1.5
//
//   $ mpirun -n 2 01_allreduce
//   2 ranks: the sum of 0 to 1 is 1, and the mean of the vectors begins with 0.5
#include <cstdio>
#include <vector>

#include <muster/muster.hpp>

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context&, muster::group& world) {  // once a rank, process or thread
    const int sum = muster::allreduce(world, world.rank(), muster::sum);            // allreduce of one number

    std::vector<float> gradient(1'000'000, static_cast<float>(world.rank()));
    auto pending = muster::allreduce_async(world, gradient, muster::mean);  // in place; compute something meanwhile
    pending.wait();

    if (world.rank() == 0)
      std::printf("%d ranks: the sum of 0 to %d is %d, and the mean of the vectors begins with %g\n", world.size(),
                  world.size() - 1, sum, static_cast<double>(gradient[0]));
  });
}
