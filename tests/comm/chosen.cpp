// Prints the algorithms that its rank would choose and runs them: ranks that chose differently would fail with an
// error.
#include <muster/muster.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    context.run([&](muster::group& world) {
      const auto before = world.sequence();
      for (const std::size_t count : {10, 1000, 100000}) {
        std::vector<float> data(count, 1.0f);
        muster::allreduce(world, data, muster::sum);
        muster::broadcast(world, data, 0);
        if (data.back() != static_cast<float>(world.size())) throw std::runtime_error("wrong sum");
      }
      const auto name = [&](muster::collective kind, std::size_t bytes) {
        return std::string(to_string(world.chosen(kind, bytes)));
      };
      std::printf("rank %d: first collective %llu, allreduce %s and %s, broadcast %s\n", world.rank(),
                  static_cast<unsigned long long>(before), name(muster::collective::allreduce, 40).c_str(),
                  name(muster::collective::allreduce, 400000).c_str(), name(muster::collective::broadcast, 40).c_str());
    });
  });
}
