// A program with the kind of failure that its first argument names; tests/comm/trouble.py checks the output and the
// exit of the ranks.
#include <muster/muster.hpp>

#include <iostream>
#include <string>
#include <thread>

#if __has_include(<mpi.h>)
#include <mpi.h>

// Overrides MPI's function: stops a rank when a split has started to make its communicator.
static bool stops_in_split = false;
extern "C" int MPI_Comm_create_group(MPI_Comm all, MPI_Group some, int tag, MPI_Comm* created) {
  if (stops_in_split) {
    std::this_thread::sleep_for(std::chrono::seconds(25));
    std::cout << "slept to its end" << std::endl;
  }
  return PMPI_Comm_create_group(all, some, tag, created);
}
#else
static bool stops_in_split = false;
#endif

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) -> int {
    const std::string kind = argc > 1 ? argv[1] : "nothing";
    context.run([&](muster::group& world) {
      const int me = world.rank();
      std::vector<float> data(argc > 2 ? std::stoul(argv[2]) : 1000, 1.0f);
      const auto step = [&] { muster::allreduce(world, data, muster::sum); };
      step();
      if (kind == "data" && me == world.size() - 1) {
        throw muster::data_error({"part.txt", 3, 9}, "bad number 'x' (not a decimal) correct the line");
      }
      if (kind == "all-alike")
        throw muster::configuration_error("--epochs cannot be 0 (nothing to do); give 1 or more");
      if (kind == "early" && me == world.size() - 1) return;
      if (kind == "mismatch" && me == 0) muster::barrier(world);
      if (kind == "native-mismatch") {
        const muster::collective_options native{.algorithm = muster::algorithm::native};
        if (me == 0) muster::allreduce(world, std::span(data).first(data.size() / 2), muster::sum, native);
        if (me != 0) muster::allreduce(world, data, muster::sum, native);
      }
      const bool is_late = me == 0 && kind.ends_with("missing");
      if (!is_late && (kind.ends_with("missing") || kind == "asleep" || kind.starts_with("split-"))) {
        auto from_here = world.settings();  // --timeout is the deadline of the start too
        from_here.timeout = muster::seconds(kind.ends_with("missing") ? 0.5 : 1.0);
        world.set_settings(from_here);
      }
      if (is_late) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      if (kind == "split-stopped") {
        stops_in_split = me == world.size() - 1;
        auto part = world.split(0);
      }
      if (kind == "split-halfway" && me != world.size() - 1) auto part = world.split(0);
      if (kind == "split-halfway" && me == world.size() - 1) {  // a split first exchanges a color and a key
        const int mine[2] = {0, 0};
        std::vector<int> all(2 * static_cast<std::size_t>(world.size()));
        muster::allgather(world, mine, all);
      }
      if ((kind == "asleep" || kind == "split-halfway") && me == world.size() - 1) {
        std::this_thread::sleep_for(std::chrono::seconds(25));
        std::cout << "slept to its end" << std::endl;
      }
      if (kind == "reduction") {
        const auto combine = [&](float a, float b) {
          if (me == 1) throw std::runtime_error("bad value in my reduction");
          return a + b;
        };
        // a rank may combine another rank's part
        for (int round = 0; round < 50; ++round) muster::allreduce(world, data, combine);
      }
      if (kind == "native-missing")
        muster::allreduce(world, data, muster::sum, {.algorithm = muster::algorithm::native});
      step();
      step();
    });
    return 0;
  });
}
