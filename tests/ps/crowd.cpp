// test_ps_crowd ROUNDS: workers pull and push a table, with a program's default options.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <muster/muster.hpp>

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  return muster::run_main(
      argc, argv,
      [&](muster::context& context, muster::group& world) {
        auto options = muster::ps::chosen_options(context.configuration(), {{.name = "sums", .size = 1000}});
        muster::ps::job job(context, world, options);
        if (job.is_server()) return job.serve();
        auto& tables = job.tables();
        const std::vector<float> ones(1000, 1.0f);
        std::vector<float> sums(1000);
        for (int round = 0; round < rounds; ++round) {
          tables.pull(0, sums);
          tables.push(0, ones);
          tables.next_clock();
        }
        auto workers = job.connect_workers();
        tables.flush();
        muster::barrier(workers);
        tables.pull(0, sums);
        const auto expected = static_cast<float>(rounds * job.workers());
        if (sums.front() != expected || sums.back() != expected)
          throw std::runtime_error("the sum is " + std::to_string(sums.front()) + ", not " + std::to_string(expected));
        muster::barrier(workers);
        if (job.worker() == 0) std::printf("%d workers have counted\n", job.workers());
        job.finish();
      },
      {.help = [] { return std::string(); }});
}
