// A program that gets into a kind of trouble that its first word names; tests/comm/trouble.py looks at what the ranks
// say and how they end.
#include <muster/muster.hpp>

#include <iostream>
#include <string>
#include <thread>

#if __has_include(<mpi.h>)
#include <mpi.h>

// Stands before MPI's own: a rank that stops when a split has begun to make its communicator.
static bool stops_in_split = false;
extern "C" int MPI_Comm_create_group(MPI_Comm all, MPI_Group some, int tag, MPI_Comm* made) {
  if (stops_in_split) {
    std::this_thread::sleep_for(std::chrono::seconds(25));
    std::cout << "slept to its end" << std::endl;
  }
  return PMPI_Comm_create_group(all, some, tag, made);
}
#else
static bool stops_in_split = false;
#endif

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
      if (what == "early" && me == world.size() - 1) return;
      if (what == "mismatch" && me == 0) muster::barrier(world);
      if (what == "native-mismatch") {
        const muster::options native{.algorithm = muster::algorithm::native};
        if (me == 0) muster::allreduce(world, std::span(data).first(data.size() / 2), muster::sum, native);
        if (me != 0) muster::allreduce(world, data, muster::sum, native);
      }
      const bool is_late = me == 0 && what.ends_with("missing");
      if (!is_late && (what.ends_with("missing") || what == "asleep" || what.starts_with("split-"))) {
        auto from_here = world.settings();  // --timeout is the deadline of the start too
        from_here.timeout = muster::seconds(what.ends_with("missing") ? 0.5 : 1.0);
        world.set_settings(from_here);
      }
      if (is_late) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      if (what == "split-stopped") {
        stops_in_split = me == world.size() - 1;
        auto part = world.split(0);
      }
      if (what == "split-halfway" && me != world.size() - 1) auto part = world.split(0);
      if (what == "split-halfway" && me == world.size() - 1) {  // the first that a split exchanges: a color and a key
        const int mine[2] = {0, 0};
        std::vector<int> all(2 * static_cast<std::size_t>(world.size()));
        muster::allgather(world, mine, all);
      }
      if ((what == "asleep" || what == "split-halfway") && me == world.size() - 1) {
        std::this_thread::sleep_for(std::chrono::seconds(25));
        std::cout << "slept to its end" << std::endl;
      }
      if (what == "reduction") {
        const auto combine = [&](float a, float b) {
          if (me == 1) throw std::runtime_error("bad value in my reduction");
          return a + b;
        };
        for (int round = 0; round < 50; ++round) muster::allreduce(world, data, combine);  // one may do another's part
      }
      if (what == "native-missing")
        muster::allreduce(world, data, muster::sum, {.algorithm = muster::algorithm::native});
      step();
      step();
    });
    return 0;
  });
}
