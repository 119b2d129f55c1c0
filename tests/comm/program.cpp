// The program in muster.hpp's first comment, unchanged, and a check of its result.
#include <muster/muster.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  muster::context context(argc, argv);
  auto& world = context.world();
  std::vector<float> gradient(1 << 20, float(world.rank()));
  muster::allreduce(world, std::span(gradient), muster::mean);  // in place
  muster::broadcast(world, std::span(gradient), /*root=*/0);
  auto work = muster::allreduce_async(world, std::span(gradient), muster::sum);
  work.wait();

  const float mean = static_cast<float>(world.size() - 1) / 2;
  for (const float x : gradient) {
    if (x != mean * static_cast<float>(world.size())) return 1;
  }
  std::printf("rank %d of %d over %s\n", world.rank(), world.size(), context.transport_name().c_str());
}
