// A user-defined allreduce, selected by name like the algorithms of the library, and tested against the oracle of the
// installed kit.
//
//   $ 07_custom_algorithm --ranks 4 --algorithm allreduce:line
//   200 cases on each of 1 to 5 ranks: as they should be
//   the sum of 4 ranks is 10, by line
//
//   $ mpirun -n 3 07_custom_algorithm --algorithm allreduce:0-1k:tree,allreduce:1k-inf:line
//   200 cases on each of 1 to 5 ranks: as they should be
//   the sum of 3 ranks is 6, by line
#include <cstdio>
#include <vector>

#include <muster/muster.hpp>
#include <muster/testing/collective_kit.hpp>

// Partial sums move up the line of ranks, and the result moves down: 2 (N - 1) messages, one after another. Every rank
// runs this coroutine. `co_await at.done(r)` releases the thread until the message has arrived.
muster::task line_allreduce(muster::collective_context& at, const muster::collective_call& call) {
  const std::size_t bytes =
      call.count * call.element_size;  // this rank's values are in call.out, which also receives the result
  const int before = at.rank() - 1, behind = at.rank() + 1;
  muster::request r;
  if (before >= 0) {
    at.receive_combine(r, before, call.out, bytes, call.reduce);  // the value of the lower rank is the left operand
    co_await at.done(r);
  }
  if (behind == at.size()) call.reduce.finish(call.out, bytes, at.size());  // a mean is divided once
  if (behind < at.size()) {
    at.send(r, behind, call.out, bytes);
    co_await at.done(r);
    at.receive(r, behind, call.out, bytes);
    co_await at.done(r);
  }
  if (before >= 0) {
    at.send(r, before, call.out, bytes);
    co_await at.done(r);
  }
}

int main(int argc, char** argv) {
  // Registered on every process, before the first context.
  const auto line = muster::register_algorithm(muster::collective::allreduce, "line", line_allreduce);
  return muster::run_main(argc, argv, [&](muster::context& context) {
    if (argc > 1) throw muster::unknown_argument(argv[1]);
    if (context.launcher().rank == 0) {
      // throws an error that describes the failure
      muster::testing::check_algorithm(muster::collective::allreduce, line);
      std::printf("200 cases on each of 1 to 5 ranks: as they should be\n");
    }
    context.run([](muster::group& world) {
      std::vector<float> values(1000, static_cast<float>(world.rank() + 1));
      // selected by --algorithm; alternatively options{.algorithm = line}
      muster::allreduce(world, values, muster::sum);
      if (world.rank() == 0)
        std::printf("the sum of %d ranks is %g, by %s\n", world.size(), static_cast<double>(values[0]),
                    std::string(to_string(world.chosen(muster::collective::allreduce, sizeof(float) * 1000))).c_str());
    });
  });
}
