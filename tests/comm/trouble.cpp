// A program that gets into a kind of trouble that its first word names; tests/comm/trouble.py looks at what the ranks
// say and how they end.
#include <muster/muster.hpp>

#include <iostream>
#include <string>
#include <thread>

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) -> int {
    const std::string what = argc > 1 ? argv[1] : "nothing";
    context.run([&](muster::group& world) {
      const int me = world.rank();
      std::vector<float> data(argc > 2 ? std::stoul(argv[2]) : 1000, 1.0f);
      const auto step = [&] { muster::allreduce(world, data, muster::sum); };
      step();
      if (what == "data" && me == world.size() - 1) {
        throw muster::data_error({"part.txt", 3, 9}, "bad number 'x' (not a decimal) correct the line");
      }
      if (what == "all-alike")
        throw muster::configuration_error("--epochs cannot be 0 (nothing to do); give 1 or more");
      if (what == "mismatch" && me == 0) muster::barrier(world);
      if (what == "native-mismatch") {
        const muster::options native{.how = muster::algorithm::native};
        if (me == 0) muster::allreduce(world, std::span(data).first(data.size() / 2), muster::sum, native);
        if (me != 0) muster::allreduce(world, data, muster::sum, native);
      }
      if (what == "missing" && me == 0) std::this_thread::sleep_for(std::chrono::milliseconds(600));
      if (what == "asleep" && me == world.size() - 1) {
        std::this_thread::sleep_for(std::chrono::seconds(25));
        std::cout << "slept to its end" << std::endl;
      }
      if (what == "native-missing") {
        if (me == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        muster::allreduce(world, data, muster::sum, {.how = muster::algorithm::native});
      }
      step();
      step();
    });
    return 0;
  });
}
